//! Why a member of a consumer group is refused.

use kafka_protocol::ResponseError;

/// A refusal with the sentence that the client shows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConsumerError {
    #[error("{0}")]
    Invalid(&'static str),
    #[error("the group has no such member; join again with epoch 0")]
    UnknownMember,
    #[error(
        "member epoch {said} is not {is}, which the member is at; give up all partitions and join again"
    )]
    FencedEpoch { said: i32, is: i32 },
    #[error("the member is at another epoch; try again after the next heartbeat")]
    StaleEpoch,
    #[error("another member has taken over this group.instance.id")]
    FencedInstance,
    #[error("group.instance.id is held by member {0}, which has not left")]
    UnreleasedInstance(String),
    #[error("assignor {wanted} is not served; one of {served}")]
    UnsupportedAssignor { wanted: String, served: String },
    #[error("subscriptions by regular expression are not served yet; subscribe to topics by name")]
    Regex,
    #[error("the group is full")]
    Full,
    #[error("the group has members of the classic protocol; until they have left, group.protocol=consumer cannot join")]
    Classic,
    #[error("OffsetCommit version 9 or later is needed in a group of the consumer protocol")]
    NoEpochs,
    #[error("{0}")]
    Coordinator(ResponseError),
}

impl ConsumerError {
    /// Kafka's error.
    pub fn error(&self) -> ResponseError {
        match self {
            ConsumerError::Invalid(_) => ResponseError::InvalidRequest,
            ConsumerError::UnknownMember => ResponseError::UnknownMemberId,
            ConsumerError::FencedEpoch { .. } => ResponseError::FencedMemberEpoch,
            ConsumerError::StaleEpoch => ResponseError::StaleMemberEpoch,
            ConsumerError::FencedInstance => ResponseError::FencedInstanceId,
            ConsumerError::UnreleasedInstance(_) => ResponseError::UnreleasedInstanceId,
            ConsumerError::UnsupportedAssignor { .. } => ResponseError::UnsupportedAssignor,
            ConsumerError::Regex => ResponseError::InvalidRegularExpression,
            ConsumerError::Full => ResponseError::GroupMaxSizeReached,
            ConsumerError::Classic => ResponseError::GroupIdNotFound,
            ConsumerError::NoEpochs => ResponseError::UnsupportedVersion,
            ConsumerError::Coordinator(error) => *error,
        }
    }
}

impl From<ResponseError> for ConsumerError {
    fn from(error: ResponseError) -> Self {
        ConsumerError::Coordinator(error)
    }
}
