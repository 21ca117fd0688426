//! Every topic key of Kafka 4: served, accepted without effect, or refused, and which of these its row
//! says.

use super::key::{Key, Kind};

const I32: i64 = i32::MAX as i64;
const MILLIS: Kind = Kind::Long(0, i64::MAX);
const WHY_VERBATIM: &str =
    "batches are stored as the producer sent them and never recompressed; only `producer` is served";
const WHY_NO_TIERS: &str = "tiered storage is not served";

pub(super) const NO_RECOMPRESSION: &[(&str, &str)] = &[
    ("uncompressed", WHY_VERBATIM),
    ("zstd", WHY_VERBATIM),
    ("lz4", WHY_VERBATIM),
    ("snappy", WHY_VERBATIM),
    ("gzip", WHY_VERBATIM),
];

/// The topic keys, in the order of their names.
pub const TOPIC_KEYS: &[Key] = &[
    Key::served(
        "cleanup.policy",
        Kind::List(&["delete", "compact"]),
        "delete",
        "What happens to old records. `delete`: segments past `retention.ms` or `retention.bytes` are deleted. \
         `compact`: accepted, and records without a key are refused on produce, but the compactor is not there yet, \
         so every record is kept.",
    )
    .defaulting_to(&[("log.cleanup.policy", 1)]),
    Key::inert(
        "compression.gzip.level",
        Kind::Int(-1, 9),
        "-1",
        "No effect: batches are never recompressed.",
    ),
    Key::inert("compression.lz4.level", Kind::Int(1, 17), "9", "No effect: batches are never recompressed."),
    Key::served(
        "compression.type",
        Kind::Choice(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]),
        "producer",
        "`producer` only: what is stored and served is what the producer sent, byte for byte.",
    )
    .refusing(NO_RECOMPRESSION)
    .defaulting_to(&[("compression.type", 1)]),
    Key::inert(
        "compression.zstd.level",
        Kind::Int(-131_072, 22),
        "3",
        "No effect: batches are never recompressed.",
    ),
    Key::inert(
        "delete.retention.ms",
        MILLIS,
        "86400000",
        "No effect yet: how long the compactor is to keep a tombstone.",
    ),
    Key::inert(
        "file.delete.delay.ms",
        MILLIS,
        "60000",
        "No effect: a segment's files are deleted as soon as the partition's manifest no longer counts on them.",
    ),
    Key::served(
        "flush.messages",
        Kind::Long(1, i64::MAX),
        "1",
        "The durability dial: how many records of a partition may be unflushed. 1 (Kafka's default is never): \
         every acknowledgement of `acks=all` waits for an fsync, and consumers see only what is fsynced. Above 1: \
         a crash of the host or of the volume's server can take back up to this many acknowledged records.",
    )
    .defaulting_to(&[("log.flush.interval.messages", 1)]),
    Key::served(
        "flush.ms",
        MILLIS,
        "9223372036854775807",
        "With `flush.messages` above 1: a record is flushed after this long at the latest.",
    )
    .defaulting_to(&[("log.flush.interval.ms", 1)]),
    Key::inert(
        "follower.replication.throttled.replicas",
        Kind::List(&[]),
        "",
        "No effect: there are no followers.",
    ),
    Key::served(
        "index.interval.bytes",
        Kind::Int(0, I32),
        "4096",
        "Bytes of log between two entries of the offset index.",
    )
    .defaulting_to(&[("log.index.interval.bytes", 1)]),
    Key::inert(
        "leader.replication.throttled.replicas",
        Kind::List(&[]),
        "",
        "No effect: there are no followers.",
    ),
    Key::inert(
        "local.retention.bytes",
        Kind::Long(-2, i64::MAX),
        "-2",
        "No effect: tiered storage is not served.",
    ),
    Key::inert(
        "local.retention.ms",
        Kind::Long(-2, i64::MAX),
        "-2",
        "No effect: tiered storage is not served.",
    ),
    Key::inert(
        "max.compaction.lag.ms",
        Kind::Long(1, i64::MAX),
        "9223372036854775807",
        "No effect yet: when the compactor must have looked at a record at the latest.",
    ),
    Key::served(
        "max.message.bytes",
        Kind::Int(0, I32),
        "1048588",
        "The largest record batch, in bytes as the client sent it, that is accepted.",
    )
    .defaulting_to(&[("message.max.bytes", 1)]),
    Key::served(
        "message.timestamp.after.max.ms",
        MILLIS,
        "3600000",
        "Under CreateTime: a batch whose timestamp is further in the future than this is refused.",
    )
    .defaulting_to(&[("log.message.timestamp.after.max.ms", 1)]),
    Key::served(
        "message.timestamp.before.max.ms",
        MILLIS,
        "9223372036854775807",
        "Under CreateTime: a batch whose timestamp is further in the past than this is refused.",
    )
    .defaulting_to(&[("log.message.timestamp.before.max.ms", 1)]),
    Key::served(
        "message.timestamp.type",
        Kind::Choice(&["CreateTime", "LogAppendTime"]),
        "CreateTime",
        "Whether a record's timestamp is the producer's or the time of the append.",
    )
    .defaulting_to(&[("log.message.timestamp.type", 1)]),
    Key::inert(
        "min.cleanable.dirty.ratio",
        Kind::Ratio,
        "0.5",
        "No effect yet: how much of a log must be new before it is compacted.",
    ),
    Key::inert(
        "min.compaction.lag.ms",
        MILLIS,
        "0",
        "No effect yet: how long the compactor is to leave a record alone.",
    ),
    Key::inert(
        "min.insync.replicas",
        Kind::Int(1, I32),
        "1",
        "No effect: the one copy on the shared volume is always in sync, and `acks=all` means fsynced to it.",
    ),
    Key::inert("preallocate", Kind::Bool, "false", "No effect: files grow as they are written."),
    Key::inert(
        "remote.log.copy.disable",
        Kind::Bool,
        "false",
        "No effect: tiered storage is not served.",
    ),
    Key::inert(
        "remote.log.delete.on.disable",
        Kind::Bool,
        "false",
        "No effect: tiered storage is not served.",
    ),
    Key::served(
        "remote.storage.enable",
        Kind::Bool,
        "false",
        "`false` only: tiered storage is not served.",
    )
    .refusing(&[("true", WHY_NO_TIERS)]),
    Key::served(
        "retention.bytes",
        Kind::Long(-1, i64::MAX),
        "-1",
        "The oldest closed segments are deleted while a partition is larger than this; -1 is unbounded.",
    )
    .defaulting_to(&[("log.retention.bytes", 1)]),
    Key::served(
        "retention.ms",
        Kind::Long(-1, i64::MAX),
        "604800000",
        "Segments whose records are all older than this are deleted; -1 keeps them for ever.",
    )
    .defaulting_to(&[
        ("log.retention.ms", 1),
        ("log.retention.minutes", 60_000),
        ("log.retention.hours", 3_600_000),
    ]),
    Key::served(
        "segment.bytes",
        Kind::Int(1024, I32),
        "1073741824",
        "A segment is closed before it grows past this. A batch larger than a segment is refused. Kafka's floor \
         is 1 MiB.",
    )
    .defaulting_to(&[("log.segment.bytes", 1)]),
    Key::inert(
        "segment.index.bytes",
        Kind::Int(4, I32),
        "10485760",
        "No effect: an index is as large as its segment needs.",
    ),
    Key::inert("segment.jitter.ms", MILLIS, "0", "No effect: segments are closed at `segment.ms` exactly."),
    Key::served(
        "segment.ms",
        Kind::Long(1, i64::MAX),
        "604800000",
        "A segment is closed when its first record is older than this, the segment of a quiet topic too.",
    )
    .defaulting_to(&[("log.roll.ms", 1), ("log.roll.hours", 3_600_000)]),
    Key::inert(
        "unclean.leader.election.enable",
        Kind::Bool,
        "false",
        "No effect: every leader has the one copy, so no election is unclean.",
    ),
];
