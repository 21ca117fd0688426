//! Why part of an admin request was refused: Kafka's error together with a sentence for the person who asked.

use crate::cluster::AdminError;
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub error: ResponseError,
    pub message: String,
}

impl Refusal {
    pub fn new(error: ResponseError, message: impl Into<String>) -> Self {
        Refusal { error, message: message.into() }
    }

    pub fn invalid_request(message: impl Into<String>) -> Self {
        Refusal::new(ResponseError::InvalidRequest, message)
    }

    pub fn unknown_topic(name: &str) -> Self {
        Refusal::from(AdminError::UnknownTopic(name.to_owned()))
    }

    pub fn code(&self) -> i16 {
        self.error.code()
    }

    /// The message as a response carries it.
    pub fn text(&self) -> Option<StrBytes> {
        Some(StrBytes::from_string(self.message.clone()))
    }
}

impl From<AdminError> for Refusal {
    fn from(e: AdminError) -> Self {
        let error = match &e {
            AdminError::NotController => ResponseError::NotController,
            AdminError::TopicExists(_) => ResponseError::TopicAlreadyExists,
            AdminError::UnknownTopic(_) => ResponseError::UnknownTopicOrPartition,
            AdminError::InvalidTopic(_) => ResponseError::InvalidTopicException,
            AdminError::InvalidPartitions(_) => ResponseError::InvalidPartitions,
            AdminError::InvalidConfig(_) => ResponseError::InvalidConfig,
            // Trying again may help.
            AdminError::Outpaced(_) | AdminError::StillServed(_) => ResponseError::RequestTimedOut,
            AdminError::Storage(_) => ResponseError::KafkaStorageError,
        };
        Refusal::new(error, e.to_string())
    }
}

/// What an outcome is on the wire: error code and message.
pub(super) fn code_and_text(outcome: Result<(), Refusal>) -> (i16, Option<StrBytes>) {
    match outcome {
        Ok(()) => (0, None),
        Err(refusal) => (refusal.code(), refusal.text()),
    }
}
