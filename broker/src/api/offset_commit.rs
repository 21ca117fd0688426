//! OffsetCommit. What is answered without an error is durable and visible (P8).
//!
//! Of a consumer group, members commit in their member epoch and from version 9 on (KIP-848): a stale epoch is
//! STALE_MEMBER_EPOCH, and the member tries again once a heartbeat told it the new one.
//!
//! Partitions that do not exist and metadata that is too long are refused one by one; the rest is committed
//! together or not at all.

use super::group_terms::{caller, code};
use super::RequestContext;
use crate::cluster::ClusterImage;
use crate::coordinator::{CommitInput, Committed, Place};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;

/// From this version on, the generation may be a member epoch.
const MEMBER_EPOCHS: i16 = 9;

pub async fn handle(cx: &RequestContext, req: OffsetCommitRequest) -> OffsetCommitResponse {
    let image = cx.broker.cluster.image();
    let terms = Terms {
        image: &image,
        metadata_max: cx.broker.groups.settings().metadata_max,
        now: cx.broker.env.clock.wall_ms(),
        retention_ms: req.retention_time_ms,
    };
    let checked: Vec<_> = req.topics.into_iter().map(|topic| terms.check_topic(topic)).collect();
    let partitions = checked.iter().flat_map(|(_, partitions)| partitions);
    let offsets: Vec<_> = partitions.filter_map(|(_, result)| result.clone().ok()).collect();
    let whole = if offsets.is_empty() {
        Ok(())
    } else {
        let caller = caller(&req.member_id, req.group_instance_id, req.generation_id_or_member_epoch);
        let names_epochs = cx.api_version >= MEMBER_EPOCHS;
        cx.broker.groups.commit(&req.group_id, CommitInput { caller, names_epochs, offsets }).await
    };
    let topics = checked.into_iter().map(|(topic, partitions)| {
        let partition = |(index, result): (i32, Checked)| {
            let error = result.err().or(whole.err());
            OffsetCommitResponsePartition::default().with_partition_index(index).with_error_code(code(error))
        };
        OffsetCommitResponseTopic::default()
            .with_name(topic.name)
            .with_partitions(partitions.into_iter().map(partition).collect())
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}

pub(super) type Checked = Result<(Place, Committed), ResponseError>;

/// By what every offset is checked, that of a transaction too.
pub(super) struct Terms<'a> {
    pub image: &'a ClusterImage,
    pub metadata_max: usize,
    pub now: i64,
    /// Versions 2 to 4 may ask for a retention time of their own; -1 is the broker's.
    pub retention_ms: i64,
}

impl Terms<'_> {
    fn check_topic(
        &self,
        mut topic: OffsetCommitRequestTopic,
    ) -> (OffsetCommitRequestTopic, Vec<(i32, Checked)>) {
        let partitions = std::mem::take(&mut topic.partitions);
        let check = |p: OffsetCommitRequestPartition| {
            let (offset, epoch) = (p.committed_offset, p.committed_leader_epoch);
            self.check(&topic.name, p.partition_index, offset, epoch, p.committed_metadata)
        };
        let checked = partitions.into_iter().map(|p| (p.partition_index, check(p)));
        let checked = checked.collect();
        (topic, checked)
    }

    pub(super) fn check(
        &self,
        name: &str,
        index: i32,
        offset: i64,
        leader_epoch: i32,
        metadata: Option<StrBytes>,
    ) -> Checked {
        let topic = self.image.topic(name).filter(|t| (0..t.partitions).contains(&index));
        let topic = topic.ok_or(ResponseError::UnknownTopicOrPartition)?;
        let metadata = metadata.unwrap_or_default().to_string();
        if metadata.len() > self.metadata_max {
            return Err(ResponseError::OffsetMetadataTooLarge);
        }
        let committed = Committed {
            topic: topic.name.clone(),
            offset,
            leader_epoch,
            metadata,
            committed_at: self.now,
            expires_at: (self.retention_ms >= 0).then(|| self.now.saturating_add(self.retention_ms)),
        };
        Ok(((topic.id, index), committed))
    }
}
