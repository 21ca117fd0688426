//! Stories about one partition on a volume in memory.

mod bed;
mod cases;
mod crashes;
mod stalls;
mod verify;
