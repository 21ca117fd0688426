//! The first error in a response, wherever its schema keeps errors: what the request counts as in the
//! metrics.

use kafka_protocol::messages::*;
use std::iter::once;

/// A response that may hold errors.
pub trait FirstError {
    /// The first error code that is not 0 (none).
    fn first_error(&self) -> i16;
}

macro_rules! first_error {
    ($($response:ident: $this:ident => $codes:expr;)*) => {
        $(impl FirstError for $response {
            fn first_error(&self) -> i16 {
                let $this = self;
                $codes.find(|code| *code != 0).unwrap_or(0)
            }
        })*
    };
}

first_error! {
    ApiVersionsResponse: r => once(r.error_code);
    ProduceResponse: r => r.responses.iter().flat_map(|t| &t.partition_responses).map(|p| p.error_code);
    FetchResponse: r => once(r.error_code)
        .chain(r.responses.iter().flat_map(|t| &t.partitions).map(|p| p.error_code));
    ListOffsetsResponse: r => r.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code);
    OffsetForLeaderEpochResponse: r => r.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code);
    MetadataResponse: r => r.topics.iter().flat_map(|t| {
        once(t.error_code).chain(t.partitions.iter().map(|p| p.error_code))
    });
    CreateTopicsResponse: r => r.topics.iter().map(|t| t.error_code);
    DeleteTopicsResponse: r => r.responses.iter().map(|t| t.error_code);
    CreatePartitionsResponse: r => r.results.iter().map(|t| t.error_code);
    DeleteRecordsResponse: r => r.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code);
    DescribeConfigsResponse: r => r.results.iter().map(|c| c.error_code);
    AlterConfigsResponse: r => r.responses.iter().map(|c| c.error_code);
    IncrementalAlterConfigsResponse: r => r.responses.iter().map(|c| c.error_code);
    DescribeLogDirsResponse: r => once(r.error_code).chain(r.results.iter().map(|d| d.error_code));
    DescribeClusterResponse: r => once(r.error_code);
    ListPartitionReassignmentsResponse: r => once(r.error_code);
    InitProducerIdResponse: r => once(r.error_code);
    FindCoordinatorResponse: r => once(r.error_code).chain(r.coordinators.iter().map(|c| c.error_code));
    JoinGroupResponse: r => once(r.error_code);
    SyncGroupResponse: r => once(r.error_code);
    HeartbeatResponse: r => once(r.error_code);
    LeaveGroupResponse: r => once(r.error_code).chain(r.members.iter().map(|m| m.error_code));
    DescribeGroupsResponse: r => r.groups.iter().map(|g| g.error_code);
    ListGroupsResponse: r => once(r.error_code);
    ConsumerGroupHeartbeatResponse: r => once(r.error_code);
    ConsumerGroupDescribeResponse: r => r.groups.iter().map(|g| g.error_code);
    DeleteGroupsResponse: r => r.results.iter().map(|g| g.error_code);
    OffsetCommitResponse: r => r.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code);
    OffsetFetchResponse: r => once(r.error_code)
        .chain(r.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code))
        .chain(r.groups.iter().flat_map(|g| {
            once(g.error_code).chain(g.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code))
        }));
    AddPartitionsToTxnResponse: r => once(r.error_code)
        .chain(r.results_by_topic_v3_and_below.iter().chain(r.results_by_transaction.iter().flat_map(|t| &t.topic_results))
            .flat_map(|t| &t.results_by_partition).map(|p| p.partition_error_code));
    AddOffsetsToTxnResponse: r => once(r.error_code);
    EndTxnResponse: r => once(r.error_code);
    TxnOffsetCommitResponse: r => r.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code);
    WriteTxnMarkersResponse: r => r.markers.iter().flat_map(|m| &m.topics).flat_map(|t| &t.partitions)
        .map(|p| p.error_code);
    DescribeTransactionsResponse: r => r.transaction_states.iter().map(|t| t.error_code);
    ListTransactionsResponse: r => once(r.error_code);
    DescribeProducersResponse: r => r.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code);
    OffsetDeleteResponse: r => once(r.error_code)
        .chain(r.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code));
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};

    #[test]
    fn the_first_error_is_found_where_the_schema_keeps_it() {
        let partition = |code| PartitionProduceResponse::default().with_error_code(code);
        let topic = |codes: &[i16]| {
            TopicProduceResponse::default()
                .with_partition_responses(codes.iter().map(|c| partition(*c)).collect())
        };
        let response = |topics: &[&[i16]]| {
            ProduceResponse::default().with_responses(topics.iter().map(|t| topic(t)).collect())
        };
        assert_eq!(response(&[&[0, 0], &[0, 56, 3]]).first_error(), 56);
        assert_eq!(response(&[&[0, 0]]).first_error(), 0);
        assert_eq!(response(&[]).first_error(), 0);
        assert_eq!(FetchResponse::default().with_error_code(70).first_error(), 70);
    }
}
