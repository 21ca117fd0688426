//! Authorized operations (KIP-430): bit fields over Kafka's `AclOperation` codes.
//!
//! There are no ACLs yet, so everybody may do everything that the kind of resource knows.

/// "Not asked for."
pub(super) const NOT_ASKED: i32 = i32::MIN;

const READ: i32 = 1 << 3;
const WRITE: i32 = 1 << 4;
const CREATE: i32 = 1 << 5;
const DELETE: i32 = 1 << 6;
const ALTER: i32 = 1 << 7;
const DESCRIBE: i32 = 1 << 8;
const CLUSTER_ACTION: i32 = 1 << 9;
const DESCRIBE_CONFIGS: i32 = 1 << 10;
const ALTER_CONFIGS: i32 = 1 << 11;
const IDEMPOTENT_WRITE: i32 = 1 << 12;

const TOPIC: i32 = READ | WRITE | CREATE | DELETE | ALTER | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS;
const CLUSTER: i32 =
    CREATE | ALTER | DESCRIBE | CLUSTER_ACTION | DESCRIBE_CONFIGS | ALTER_CONFIGS | IDEMPOTENT_WRITE;
const GROUP: i32 = READ | DELETE | DESCRIBE;

pub(super) fn on_topic(asked: bool) -> i32 {
    if asked {
        TOPIC
    } else {
        NOT_ASKED
    }
}

pub(super) fn on_cluster(asked: bool) -> i32 {
    if asked {
        CLUSTER
    } else {
        NOT_ASKED
    }
}

pub(super) fn on_group(asked: bool) -> i32 {
    if asked {
        GROUP
    } else {
        NOT_ASKED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_what_kafka_without_an_authorizer_says() {
        assert_eq!(on_topic(true), 3576);
        assert_eq!(on_cluster(true), 8096);
        assert_eq!(on_group(true), 328);
        assert_eq!(on_topic(false), i32::MIN);
    }
}
