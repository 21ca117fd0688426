//! From a topic's name or id and a partition's number to the partition, and from storage's errors to Kafka's codes.

use super::RequestContext;
use crate::cluster::{ClusterImage, TopicImage};
use crate::storage::{AppendError, Marks, Partition, ReadError};
use crate::types::TopicId;
use kafka_protocol::ResponseError;
use std::sync::Arc;
use uuid::Uuid;

/// The first version of Produce, and of Fetch, that names topics by id.
pub(super) const IDS_SINCE: i16 = 13;

/// How a request names a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Named<'a> {
    Name(&'a str),
    /// Of one incarnation (KIP-516): when the topic was deleted, and perhaps created anew, there is nothing of that id.
    Id(TopicId),
}

impl<'a> Named<'a> {
    /// By what Produce and Fetch name a topic in this version: both have nothing but ids from 13 on.
    pub fn in_version(version: i16, name: &'a str, id: Uuid) -> Named<'a> {
        match version < IDS_SINCE {
            true => Named::Name(name),
            false => Named::Id(TopicId(id)),
        }
    }

    /// The topic, if there is one, in the picture that was handed in.
    pub fn topic<'i>(&self, image: &'i ClusterImage) -> Result<&'i Arc<TopicImage>, ResponseError> {
        match self {
            Named::Name(name) => image.topic(name).ok_or(ResponseError::UnknownTopicOrPartition),
            Named::Id(id) => image.topic_by_id(*id).ok_or(ResponseError::UnknownTopicId),
        }
    }
}

/// The partition, if it exists and this broker has it.
pub(super) fn find(cx: &RequestContext, topic: &str, index: i32) -> Result<Arc<Partition>, ResponseError> {
    find_named(cx, &Named::Name(topic), index)
}

/// As [`find`], for APIs whose later versions name topics by id.
pub(super) fn find_named(
    cx: &RequestContext,
    topic: &Named<'_>,
    index: i32,
) -> Result<Arc<Partition>, ResponseError> {
    let image = cx.broker.cluster.image();
    let topic = topic.topic(&image)?;
    if !(0..topic.partitions).contains(&index) {
        return Err(ResponseError::UnknownTopicOrPartition);
    }
    cx.broker.cluster.engine().get(topic.id, index).ok_or(ResponseError::NotLeaderOrFollower)
}

/// Compares the leader epoch that a client believes in with the partition's (KIP-320). −1 asks for no check.
///
/// Epochs since this broker began to lead are all current: the other brokers show the first of them.
pub(super) fn check_epoch(believed: i32, marks: &Marks) -> Result<(), ResponseError> {
    match believed {
        e if e < 0 => Ok(()),
        e if e < marks.since.wire() => Err(ResponseError::FencedLeaderEpoch),
        e if e > marks.epoch.wire() => Err(ResponseError::UnknownLeaderEpoch),
        _ => Ok(()),
    }
}

/// What a failed read is called. A stale epoch goes first, as in Kafka: where an offset lies means nothing to
/// a client that follows another leader.
pub(super) fn read_error(error: &ReadError, believed_epoch: i32) -> ResponseError {
    match error {
        ReadError::NotLeader => ResponseError::NotLeaderOrFollower,
        ReadError::OutOfRange(marks) => {
            check_epoch(believed_epoch, marks).err().unwrap_or(ResponseError::OffsetOutOfRange)
        }
        ReadError::Corrupt(_) => ResponseError::CorruptMessage,
        ReadError::Storage(_) => ResponseError::KafkaStorageError,
    }
}

pub(super) fn append_error(error: &AppendError) -> ResponseError {
    match error {
        AppendError::NotLeader => ResponseError::NotLeaderOrFollower,
        AppendError::Storage(_) => ResponseError::KafkaStorageError,
        AppendError::TimedOut => ResponseError::RequestTimedOut,
        AppendError::Invalid(_) => ResponseError::InvalidRecord,
        AppendError::Corrupt => ResponseError::CorruptMessage,
        AppendError::TooLarge { .. } => ResponseError::MessageTooLarge,
        AppendError::LargerThanSegment { .. } => ResponseError::RecordListTooLarge,
        AppendError::UnsupportedCompression(_) => ResponseError::UnsupportedCompressionType,
        AppendError::InvalidTimestamp(_) => ResponseError::InvalidTimestamp,
        AppendError::OutOfOrderSequence { .. } => ResponseError::OutOfOrderSequenceNumber,
        AppendError::InvalidProducerEpoch { .. } => ResponseError::InvalidProducerEpoch,
        AppendError::DuplicateSequence(_) => ResponseError::DuplicateSequenceNumber,
        AppendError::InvalidTxnState => ResponseError::InvalidTxnState,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Epoch, Offset};

    #[test]
    fn a_client_that_follows_an_older_or_a_newer_leader_is_told_so() {
        let marks = Marks {
            epoch: Epoch(5),
            since: Epoch(3),
            log_start: Offset(10),
            hwm: Offset(20),
            lso: Offset(20),
        };
        assert_eq!(check_epoch(-1, &marks), Ok(()));
        assert_eq!(check_epoch(5, &marks), Ok(()));
        assert_eq!(check_epoch(3, &marks), Ok(()), "this broker led it then, too");
        assert_eq!(check_epoch(2, &marks), Err(ResponseError::FencedLeaderEpoch));
        assert_eq!(check_epoch(6, &marks), Err(ResponseError::UnknownLeaderEpoch));
        let out = ReadError::OutOfRange(marks);
        assert_eq!(read_error(&out, 2), ResponseError::FencedLeaderEpoch);
        assert_eq!(read_error(&out, 5), ResponseError::OffsetOutOfRange);
        assert_eq!(read_error(&out, -1), ResponseError::OffsetOutOfRange);
    }

    /// The numbers that clients act on (Kafka: protocol guide, error codes).
    #[test]
    fn append_errors_have_the_codes_that_clients_know() {
        let codes = [
            (AppendError::NotLeader, 6),
            (AppendError::Storage("x".into()), 56),
            (AppendError::TimedOut, 7),
            (AppendError::Invalid("x".into()), 87),
            (AppendError::Corrupt, 2),
            (AppendError::TooLarge { size: 2, max: 1 }, 10),
            (AppendError::LargerThanSegment { size: 2, max: 1 }, 18),
            (AppendError::UnsupportedCompression(7), 76),
            (AppendError::InvalidTimestamp(0), 32),
            (AppendError::OutOfOrderSequence { got: 2, expected: 1 }, 45),
            (AppendError::InvalidProducerEpoch { got: 1, current: 2 }, 47),
            (AppendError::DuplicateSequence(3), 46),
            (AppendError::InvalidTxnState, 48),
        ];
        for (error, code) in codes {
            assert_eq!(append_error(&error).code(), code, "{error}");
        }
    }
}
