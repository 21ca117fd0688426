//! What a config request is about (KIP-133): the kinds of resource, and which of them have configs here.

use super::refusal::Refusal;
use crate::cluster::{check_topic_name, ClusterImage, TopicImage};
use crate::types::BrokerId;
use std::sync::Arc;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;

#[derive(Clone, Debug)]
pub(super) enum Resource {
    Topic(Arc<TopicImage>),
    Broker,
    /// The defaults of all brokers that Kafka keeps and changes at run time: the empty broker name.
    AllBrokers,
}

/// # Errors
/// INVALID_REQUEST for what has no configs, UNKNOWN_TOPIC_OR_PARTITION or INVALID_TOPIC_EXCEPTION for a topic.
pub(super) fn find(kind: i8, name: &str, image: &ClusterImage, this: BrokerId) -> Result<Resource, Refusal> {
    let none = |what: &str| Err(Refusal::invalid_request(format!("{what} have no configs here")));
    match kind {
        TOPIC => {
            check_topic_name(name)?;
            let topic = image.topic(name).ok_or_else(|| Refusal::unknown_topic(name))?;
            Ok(Resource::Topic(topic.clone()))
        }
        BROKER if name.is_empty() => Ok(Resource::AllBrokers),
        BROKER => match name.parse::<i32>() {
            Ok(id) if id == this.0 => Ok(Resource::Broker),
            Ok(id) => Err(Refusal::invalid_request(format!(
                "broker {this} was asked about broker {id}; ask it about {this}, or about \"\" for the \
                 cluster-wide defaults"
            ))),
            Err(_) => Err(Refusal::invalid_request(format!("{name:?} is no broker id"))),
        },
        BROKER_LOGGER => none("broker loggers"),
        CLIENT_METRICS => none("client metrics subscriptions"),
        GROUP => none("groups"),
        _ => Err(Refusal::invalid_request(format!("unknown resource type {kind}"))),
    }
}

/// The topic whose configs are to be altered. A broker's are static here: its file, environment and command line
/// say them, and a restart changes them.
pub(super) fn alterable(
    kind: i8,
    name: &str,
    image: &ClusterImage,
    this: BrokerId,
) -> Result<Arc<TopicImage>, Refusal> {
    match find(kind, name, image, this)? {
        Resource::Topic(topic) => Ok(topic),
        Resource::Broker | Resource::AllBrokers => Err(Refusal::invalid_request(
            "broker configs are static: change them in the configuration file, the environment or the command \
             line, and restart the broker",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TopicId;

    fn image() -> ClusterImage {
        let topic = TopicImage {
            leaders: Vec::new(),
            epochs: Vec::new(),
            disowned: Default::default(),
            name: "t".to_owned(),
            id: TopicId::default(),
            partitions: 1,
            overrides: Default::default(),
            config: Arc::default(),
        };
        let mut image = ClusterImage::default();
        image.topics.insert("t".to_owned(), Arc::new(topic));
        image
    }

    fn code<T>(outcome: Result<T, Refusal>) -> i16 {
        outcome.map_or_else(|r| r.code(), |_| 0)
    }

    #[test]
    fn topics_and_this_broker_have_configs() {
        let found = |kind, name| code(find(kind, name, &image(), BrokerId(7)));
        assert_eq!(found(TOPIC, "t"), 0);
        assert_eq!(found(TOPIC, "u"), 3);
        assert_eq!(found(TOPIC, "../t"), 17);
        assert_eq!(found(BROKER, "7"), 0);
        assert_eq!(found(BROKER, ""), 0);
        for name in ["8", "-7", "x", "7 ", "99999999999"] {
            assert_eq!(found(BROKER, name), 42, "{name}");
        }
        for kind in [BROKER_LOGGER, CLIENT_METRICS, GROUP, 0, 1, 3, -1] {
            assert_eq!(found(kind, "7"), 42, "{kind}");
        }
    }

    #[test]
    fn only_topics_can_be_altered() {
        let altered = |kind, name| code(alterable(kind, name, &image(), BrokerId(7)));
        assert_eq!(altered(TOPIC, "t"), 0);
        assert_eq!(altered(BROKER, "7"), 42);
        assert_eq!(altered(BROKER, ""), 42);
    }
}
