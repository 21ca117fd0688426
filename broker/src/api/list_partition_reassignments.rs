//! ListPartitionReassignments (KIP-455). The volume holds the only replica of a partition, and a new leader
//! copies nothing: no reassignment is ever under way.

use super::RequestContext;
use kafka_protocol::messages::{ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse};

pub async fn handle(
    _cx: &RequestContext,
    _req: ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    ListPartitionReassignmentsResponse::default().with_error_message(None)
}
