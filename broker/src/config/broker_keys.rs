//! Every broker key that is served: the one place that names it, its default, range and meaning.

use super::key::{Key, Kind};

const I32: i64 = i32::MAX as i64;
const INT: Kind = Kind::Int(0, I32);
const POSITIVE: Kind = Kind::Int(1, I32);
const MILLIS: Kind = Kind::Long(0, i64::MAX);
const NO_ZERO: &[(&str, &str)] = &[("0", "must be -1 (for ever) or at least 1")];

/// Keys that say the same in several ways: the strongest first. A setting of one replaces what weaker
/// layers said about any of them.
pub(super) const FAMILIES: &[&[&str]] = &[
    &["node.id", "broker.id"],
    &["log.dirs", "log.dir"],
    &["log.retention.ms", "log.retention.minutes", "log.retention.hours"],
    &["log.roll.ms", "log.roll.hours"],
];

/// The broker's keys, under Kafka's names where Kafka has one.
pub const BROKER_KEYS: &[Key] = &[
    // Who and where
    Key::served("broker.id", INT, "1", "This broker's id in the cluster. Alias: `node.id`."),
    Key::unset("node.id", INT, "Alias of `broker.id`; if both are set they must agree."),
    Key::served(
        "listeners",
        Kind::Text,
        "PLAINTEXT://127.0.0.1:9092",
        "The address that clients connect to, as `PLAINTEXT://host:port` or `host:port`; an empty host or \
         0.0.0.0 means every interface, port 0 any free port. One listener, without TLS or SASL.",
    ),
    Key::unset(
        "advertised.listeners",
        Kind::Text,
        "The address that clients are told to connect to, as `PLAINTEXT://host:port` or `host:port`. Unset: as \
         bound. Must be set if `listeners` names every interface.",
    ),
    Key::served(
        "log.dirs",
        Kind::Text,
        "data",
        "The directory that holds all data: the root of the shared volume. Exactly one. Alias: `log.dir`.",
    ),
    Key::unset("log.dir", Kind::Text, "Alias of `log.dirs`, which is the stronger."),
    Key::unset(
        "cluster.dir",
        Kind::Text,
        "A directory for the control plane's files (heartbeats, metadata, groups' offsets), on a volume of its own: then \
         a data volume that is full or hangs harms only its topics. The same for all brokers, and for good. Unset: \
         they lie in `log.dirs`.",
    ),
    Key::served(
        "metrics.listener",
        Kind::Text,
        "127.0.0.1:9644",
        "The address of `/metrics`, `/healthz` and `/readyz` over HTTP, as `host:port`; `off` serves none.",
    ),
    // Topics
    Key::served(
        "num.partitions",
        Kind::Int(1, 100_000),
        "1",
        "Partitions of a topic that is created without saying how many.",
    ),
    Key::served(
        "max.partitions.per.request",
        POSITIVE,
        "10000",
        "Partitions that one CreateTopics, CreatePartitions or Metadata request may create at most, over all its \
         topics.",
    ),
    Key::served(
        "max.partitions",
        POSITIVE,
        "100000",
        "Partitions that the cluster may have at most; what would exceed it is refused with POLICY_VIOLATION.",
    ),
    Key::served(
        "auto.create.topics.enable",
        Kind::Bool,
        "true",
        "Whether a topic is created when a client first asks for its metadata and lets the broker create it.",
    ),
    Key::inert(
        "default.replication.factor",
        Kind::Int(1, 1),
        "1",
        "There is one copy of each partition, on the shared volume; its redundancy is the volume's.",
    ),
    // Connections and requests
    Key::served(
        "socket.request.max.bytes",
        Kind::Int(1024, I32),
        "104857600",
        "The largest request, in bytes. A connection that announces a larger one is closed.",
    ),
    Key::unset(
        "max.connections",
        POSITIVE,
        "Connections at a time; further ones are closed at once. Unset: half of the process's limit of open \
         files.",
    ),
    Key::served(
        "connections.max.idle.ms",
        Kind::Long(1, i64::MAX),
        "600000",
        "A connection on which nothing was asked for this long is closed.",
    ),
    Key::served(
        "queued.max.request.bytes",
        Kind::Long(-1, i64::MAX),
        "-1",
        "Bytes of requests in work, over all connections; beyond it the broker stops reading. -1 bounds them per \
         connection only; a bound over all lets a partition that waits for its volume hold up the others.",
    ),
    Key::served(
        "fetch.max.bytes",
        Kind::Int(1024, I32),
        "57671680",
        "The most bytes of records in one fetch response, the first batch excepted.",
    ),
    // Log: defaults of topic keys
    Key::served(
        "message.max.bytes",
        INT,
        "1048588",
        "The largest record batch, in bytes, that is accepted (topic: `max.message.bytes`).",
    ),
    Key::served(
        "log.segment.bytes",
        Kind::Int(1024, I32),
        "1073741824",
        "A segment is closed before it grows past this (topic: `segment.bytes`). Kafka's floor is 1 MiB.",
    ),
    Key::unset(
        "log.roll.ms",
        Kind::Long(1, i64::MAX),
        "A segment is closed when its first record is older than this (topic: `segment.ms`).",
    ),
    Key::served(
        "log.roll.hours",
        POSITIVE,
        "168",
        "As `log.roll.ms`, which is the stronger, in hours.",
    ),
    Key::unset(
        "log.retention.ms",
        Kind::Long(-1, i64::MAX),
        "Closed segments whose records are all older than this are deleted; -1 keeps them for ever (topic: \
         `retention.ms`).",
    )
    .refusing(NO_ZERO),
    Key::unset(
        "log.retention.minutes",
        Kind::Int(-1, I32),
        "As `log.retention.ms`, which is the stronger, in minutes.",
    )
    .refusing(NO_ZERO),
    Key::served(
        "log.retention.hours",
        Kind::Int(-1, I32),
        "168",
        "As `log.retention.minutes`, which is the stronger, in hours.",
    )
    .refusing(NO_ZERO),
    Key::served(
        "log.retention.bytes",
        Kind::Long(-1, i64::MAX),
        "-1",
        "The oldest closed segments are deleted while a partition is larger than this; -1 is unbounded (topic: \
         `retention.bytes`).",
    ),
    Key::served(
        "log.retention.check.interval.ms",
        Kind::Long(1, i64::MAX),
        "300000",
        "How often retention is applied.",
    ),
    Key::served(
        "log.cleanup.policy",
        Kind::List(&["delete", "compact"]),
        "delete",
        "The default of the topic key `cleanup.policy`.",
    ),
    Key::served(
        "log.flush.interval.messages",
        Kind::Long(1, i64::MAX),
        "1",
        "The durability dial: how many records of a partition may be unflushed. 1 (Kafka's default is never): \
         every acknowledgement of `acks=all` waits for an fsync, and consumers see only what is fsynced. Above 1: \
         a crash of the host or of the volume's server can take back up to this many acknowledged records (topic: \
         `flush.messages`).",
    ),
    Key::unset(
        "log.flush.interval.ms",
        MILLIS,
        "With the dial above 1: a record is flushed after this long at the latest. Unset: no such limit (topic: \
         `flush.ms`).",
    ),
    Key::served(
        "log.index.interval.bytes",
        INT,
        "4096",
        "Bytes of log between two entries of the offset index (topic: `index.interval.bytes`).",
    ),
    Key::served(
        "log.message.timestamp.type",
        Kind::Choice(&["CreateTime", "LogAppendTime"]),
        "CreateTime",
        "The default of the topic key `message.timestamp.type`.",
    ),
    Key::served(
        "log.message.timestamp.before.max.ms",
        MILLIS,
        "9223372036854775807",
        "The default of the topic key `message.timestamp.before.max.ms`.",
    ),
    Key::served(
        "log.message.timestamp.after.max.ms",
        MILLIS,
        "3600000",
        "The default of the topic key `message.timestamp.after.max.ms`.",
    ),
    Key::inert(
        "compression.type",
        Kind::Choice(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]),
        "producer",
        "Batches are stored as the producer compressed them.",
    )
    .refusing(super::topic_keys::NO_RECOMPRESSION),
    // Producers and groups
    Key::served(
        "producer.id.expiration.ms",
        Kind::Int(1, I32),
        "86400000",
        "How long a partition remembers an idempotent producer that is silent.",
    ),
    Key::served(
        "group.min.session.timeout.ms",
        Kind::Int(1, I32),
        "6000",
        "The shortest session timeout that a group member may ask for.",
    ),
    Key::served(
        "group.max.session.timeout.ms",
        Kind::Int(1, I32),
        "1800000",
        "The longest session timeout that a group member may ask for.",
    ),
    Key::served(
        "group.initial.rebalance.delay.ms",
        INT,
        "3000",
        "How long the first rebalance of an empty group waits for further members.",
    ),
    Key::served("group.max.size", POSITIVE, "2147483647", "The most members of a group."),
    Key::served(
        "group.consumer.session.timeout.ms",
        POSITIVE,
        "45000",
        "A member of a consumer group (group.protocol=consumer, KIP-848) that is silent for so long is out of it.",
    ),
    Key::served(
        "group.consumer.min.session.timeout.ms",
        POSITIVE,
        "45000",
        "The shortest that group.consumer.session.timeout.ms may be.",
    ),
    Key::served(
        "group.consumer.max.session.timeout.ms",
        POSITIVE,
        "60000",
        "The longest that group.consumer.session.timeout.ms may be.",
    ),
    Key::served(
        "group.consumer.heartbeat.interval.ms",
        POSITIVE,
        "5000",
        "How often members of consumer groups are told to send heartbeats, with which they also learn of changes.",
    ),
    Key::served(
        "group.consumer.min.heartbeat.interval.ms",
        POSITIVE,
        "5000",
        "The shortest that group.consumer.heartbeat.interval.ms may be.",
    ),
    Key::served(
        "group.consumer.max.heartbeat.interval.ms",
        POSITIVE,
        "15000",
        "The longest that group.consumer.heartbeat.interval.ms may be.",
    ),
    Key::served("group.consumer.max.size", POSITIVE, "2147483647", "The most members of a consumer group."),
    Key::served(
        "transaction.max.timeout.ms",
        POSITIVE,
        "900000",
        "The longest transaction.timeout.ms that a transactional producer may ask for.",
    ),
    Key::served(
        "transactional.id.expiration.ms",
        POSITIVE,
        "604800000",
        "A transactional id without an open transaction is forgotten after this long.",
    ),
    Key::served(
        "group.consumer.assignors",
        Kind::List(&["uniform", "range"]),
        "uniform,range",
        "The assignors that members of consumer groups may ask for; the first is for those that ask for none.",
    ),
    Key::served(
        "offsets.retention.minutes",
        POSITIVE,
        "10080",
        "Committed offsets are forgotten this long after their group became empty.",
    ),
    Key::served(
        "offsets.retention.check.interval.ms",
        Kind::Long(1, i64::MAX),
        "600000",
        "How often expired offsets are looked for.",
    ),
    Key::served(
        "offset.metadata.max.bytes",
        INT,
        "4096",
        "The longest metadata string of an offset commit, in bytes.",
    ),
    // Cluster and storage: Highwater's own
    Key::served(
        "broker.lease.ms",
        Kind::Int(2000, 600_000),
        "10000",
        "How long a broker may be silent on the volume before others may lead its partitions. All brokers of a \
         cluster must have the same.",
    ),
    Key::served(
        "storage.sync.timeout.ms",
        Kind::Int(100, 3_600_000),
        "30000",
        "An fsync that takes longer fails those who wait for it with KAFKA_STORAGE_ERROR and stalls its \
         partition until the volume answers again.",
    ),
    Key::served(
        "storage.group.bytes",
        Kind::Int(4096, 1 << 30),
        "4194304",
        "The most bytes written between two fsyncs of a partition, one larger batch excepted.",
    ),
    Key::served(
        "storage.checkpoint.bytes",
        Kind::Long(4096, i64::MAX),
        "67108864",
        "How far a log grows past its recovery checkpoint: what a restart after a crash reads again at most.",
    ),
    Key::served(
        "storage.queue.bytes",
        Kind::Long(4096, i64::MAX),
        "16777216",
        "Bytes that may wait for the fsync of one partition before produce requests wait in line.",
    ),
    Key::unset(
        "storage.max.open.files",
        Kind::Int(16, I32),
        "Segment files held open at a time, over all partitions. Unset: a quarter of the process's limit of \
         open files, at most 8192.",
    ),
];
