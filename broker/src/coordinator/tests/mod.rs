//! Whole coordinators: on a log that does what a test says, and on the storage engine over a volume in memory.

mod bed;
mod consumer_groups;
mod on_fake_log;
mod on_storage;
mod transaction_bed;
mod transactional_offsets;
mod transactions;
mod transactions_at_random;
mod transactions_on_storage;
