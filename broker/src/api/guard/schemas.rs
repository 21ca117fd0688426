//! The requests that are served, after Kafka's message definitions, as far as the served versions go.

use super::schema::*;
use kafka_protocol::messages::ApiKey;

pub(super) fn of(key: ApiKey) -> Option<&'static Schema> {
    Some(match key {
        ApiKey::Produce => &PRODUCE,
        ApiKey::Fetch => &FETCH,
        ApiKey::ListOffsets => &LIST_OFFSETS,
        ApiKey::Metadata => &METADATA,
        ApiKey::OffsetCommit => &OFFSET_COMMIT,
        ApiKey::OffsetFetch => &OFFSET_FETCH,
        ApiKey::FindCoordinator => &FIND_COORDINATOR,
        ApiKey::JoinGroup => &JOIN_GROUP,
        ApiKey::Heartbeat => &HEARTBEAT,
        ApiKey::LeaveGroup => &LEAVE_GROUP,
        ApiKey::SyncGroup => &SYNC_GROUP,
        ApiKey::DescribeGroups => &DESCRIBE_GROUPS,
        ApiKey::ListGroups => &LIST_GROUPS,
        ApiKey::ApiVersions => &API_VERSIONS,
        ApiKey::CreateTopics => &CREATE_TOPICS,
        ApiKey::DeleteTopics => &DELETE_TOPICS,
        ApiKey::DeleteRecords => &DELETE_RECORDS,
        ApiKey::InitProducerId => &INIT_PRODUCER_ID,
        ApiKey::OffsetForLeaderEpoch => &OFFSET_FOR_LEADER_EPOCH,
        ApiKey::DescribeConfigs => &DESCRIBE_CONFIGS,
        ApiKey::AlterConfigs => &ALTER_CONFIGS,
        ApiKey::DescribeLogDirs => &DESCRIBE_LOG_DIRS,
        ApiKey::CreatePartitions => &CREATE_PARTITIONS,
        ApiKey::DeleteGroups => &DELETE_GROUPS,
        ApiKey::IncrementalAlterConfigs => &INCREMENTAL_ALTER_CONFIGS,
        ApiKey::ListPartitionReassignments => &LIST_PARTITION_REASSIGNMENTS,
        ApiKey::OffsetDelete => &OFFSET_DELETE,
        ApiKey::ConsumerGroupHeartbeat => &CONSUMER_GROUP_HEARTBEAT,
        ApiKey::ConsumerGroupDescribe => &CONSUMER_GROUP_DESCRIBE,
        ApiKey::DescribeCluster => &DESCRIBE_CLUSTER,
        ApiKey::AddPartitionsToTxn => &ADD_PARTITIONS_TO_TXN,
        ApiKey::AddOffsetsToTxn => &ADD_OFFSETS_TO_TXN,
        ApiKey::EndTxn => &END_TXN,
        ApiKey::TxnOffsetCommit => &TXN_OFFSET_COMMIT,
        ApiKey::WriteTxnMarkers => &WRITE_TXN_MARKERS,
        ApiKey::DescribeTransactions => &DESCRIBE_TRANSACTIONS,
        ApiKey::ListTransactions => &LIST_TRANSACTIONS,
        ApiKey::DescribeProducers => &DESCRIBE_PRODUCERS,
        _ => return None,
    })
}

const PRODUCE: Schema = request(
    9,
    &[
        STRING, // transactional id
        INT16,  // acks
        INT32,  // timeout
        array(&[STRING.until(12), UUID.since(13), array(&[INT32, BYTES])]),
    ],
);

const FETCH: Schema = Schema {
    flexible_since: 12,
    fields: &[
        INT32.until(14), // replica id
        INT32,           // max wait
        INT32,           // min bytes
        INT32,           // max bytes
        INT8,            // isolation
        INT32.since(7),
        INT32.since(7), // session id and epoch
        array(&[
            STRING.until(12),
            UUID.since(13),
            tagged_array(
                &[
                    INT32,
                    INT32.since(9), // current leader epoch
                    INT64,
                    INT32.since(12), // last fetched epoch
                    INT64.since(5),  // log start
                    INT32,
                ],
                &[(0, Kind::Fixed(16))], // replica directory id, since 17
            ),
        ]),
        array(&[STRING.until(12), UUID.since(13), INT32S]).since(7), // forgotten topics
        STRING.since(11),                                            // rack
    ],
    // The cluster id, and since 15 replica id and epoch.
    tags: &[(0, Kind::String), (1, Kind::Struct(&[INT32, INT64]))],
};

const LIST_OFFSETS: Schema =
    request(6, &[INT32, INT8.since(2), array(&[STRING, array(&[INT32, INT32.since(4), INT64])])]);

const METADATA: Schema =
    request(9, &[array(&[UUID.since(10), STRING]), BOOL.since(4), BOOL.since(8).until(10), BOOL.since(8)]);

const OFFSET_COMMIT: Schema = request(
    8,
    &[
        STRING,
        INT32,
        STRING,
        STRING.since(7),         // group instance id
        INT64.since(2).until(4), // retention
        array(&[STRING, array(&[INT32, INT64, INT32.since(6), STRING])]),
    ],
);

const OFFSET_FETCH: Schema = request(
    6,
    &[
        STRING.until(7),
        array(&[STRING, INT32S]).until(7),
        array(&[
            STRING,
            STRING.since(9),
            INT32.since(9), // member id and epoch
            array(&[STRING, INT32S]),
        ])
        .since(8),
        BOOL.since(7),
    ],
);

const FIND_COORDINATOR: Schema = request(3, &[STRING.until(3), INT8.since(1), STRINGS.since(4)]);

const JOIN_GROUP: Schema = request(
    6,
    &[
        STRING,
        INT32,
        INT32.since(1), // rebalance timeout
        STRING,
        STRING.since(5), // group instance id
        STRING,
        array(&[STRING, BYTES]),
        STRING.since(8), // reason
    ],
);

const HEARTBEAT: Schema = request(4, &[STRING, INT32, STRING, STRING.since(3)]);

const LEAVE_GROUP: Schema =
    request(4, &[STRING, STRING.until(2), array(&[STRING, STRING, STRING.since(5)]).since(3)]);

const SYNC_GROUP: Schema = request(
    4,
    &[
        STRING,
        INT32,
        STRING,
        STRING.since(3), // group instance id
        STRING.since(5),
        STRING.since(5), // protocol type and name
        array(&[STRING, BYTES]),
    ],
);

const DESCRIBE_GROUPS: Schema = request(5, &[STRINGS, BOOL.since(3)]);

const LIST_GROUPS: Schema = request(3, &[STRINGS.since(4), STRINGS.since(5)]);

const DELETE_GROUPS: Schema = request(2, &[STRINGS]);

const OFFSET_DELETE: Schema = request(NEVER, &[STRING, array(&[STRING, array(&[INT32])])]);

const CONSUMER_GROUP_HEARTBEAT: Schema = request(
    0,
    &[
        STRING,
        STRING,
        INT32,                  // member epoch
        STRING,                 // instance id
        STRING,                 // rack
        INT32,                  // rebalance timeout
        STRINGS,                // subscribed topics
        STRING.since(1),        // regular expression
        STRING,                 // assignor
        array(&[UUID, INT32S]), // owned partitions
    ],
);

const CONSUMER_GROUP_DESCRIBE: Schema = request(0, &[STRINGS, BOOL]);

const API_VERSIONS: Schema = request(3, &[STRING.since(3), STRING.since(3)]);

const CREATE_TOPICS: Schema = request(
    5,
    &[
        array(&[
            STRING,
            INT32,
            INT16,
            array(&[INT32, INT32S]),  // assignments
            array(&[STRING, STRING]), // configs
        ]),
        INT32,
        BOOL,
    ],
);

const DELETE_TOPICS: Schema = request(4, &[array(&[STRING, UUID]).since(6), STRINGS.until(5), INT32]);

const DELETE_RECORDS: Schema = request(2, &[array(&[STRING, array(&[INT32, INT64])]), INT32]);

const INIT_PRODUCER_ID: Schema = request(2, &[STRING, INT32, INT64.since(3), INT16.since(3)]);

const TOPIC_PARTITIONS: Field = array(&[STRING, INT32S]);

const ADD_PARTITIONS_TO_TXN: Schema = request(
    3,
    &[
        array(&[STRING, INT64, INT16, BOOL, TOPIC_PARTITIONS]).since(4),
        STRING.until(3), // transactional id
        INT64.until(3),  // producer id
        INT16.until(3),  // producer epoch
        TOPIC_PARTITIONS.until(3),
    ],
);

const ADD_OFFSETS_TO_TXN: Schema = request(3, &[STRING, INT64, INT16, STRING]);

const END_TXN: Schema = request(3, &[STRING, INT64, INT16, BOOL]);

const TXN_OFFSET_COMMIT: Schema = request(
    3,
    &[
        STRING,          // transactional id
        STRING,          // group
        INT64,           // producer id
        INT16,           // producer epoch
        INT32.since(3),  // generation
        STRING.since(3), // member
        STRING.since(3), // instance
        array(&[STRING, array(&[INT32, INT64, INT32.since(2), STRING])]),
    ],
);

const WRITE_TXN_MARKERS: Schema = request(1, &[array(&[INT64, INT16, BOOL, TOPIC_PARTITIONS, INT32])]);

const DESCRIBE_TRANSACTIONS: Schema = request(0, &[STRINGS]);

const LIST_TRANSACTIONS: Schema = request(0, &[STRINGS, INT64S, INT64.since(1)]);

const DESCRIBE_PRODUCERS: Schema = request(0, &[TOPIC_PARTITIONS]);

const OFFSET_FOR_LEADER_EPOCH: Schema =
    request(4, &[INT32.since(3), array(&[STRING, array(&[INT32, INT32, INT32])])]);

const DESCRIBE_CONFIGS: Schema = request(4, &[array(&[INT8, STRING, STRINGS]), BOOL, BOOL.since(3)]);

const ALTER_CONFIGS: Schema = request(2, &[array(&[INT8, STRING, array(&[STRING, STRING])]), BOOL]);

const INCREMENTAL_ALTER_CONFIGS: Schema =
    request(1, &[array(&[INT8, STRING, array(&[STRING, INT8, STRING])]), BOOL]);

const DESCRIBE_LOG_DIRS: Schema = request(2, &[array(&[STRING, INT32S])]);

const CREATE_PARTITIONS: Schema = request(2, &[array(&[STRING, INT32, array(&[INT32S])]), INT32, BOOL]);

const LIST_PARTITION_REASSIGNMENTS: Schema = request(0, &[INT32, array(&[STRING, INT32S])]);

const DESCRIBE_CLUSTER: Schema = request(0, &[BOOL, INT8.since(1)]);
