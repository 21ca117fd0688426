//! DeleteTopics (KIP-4; by topic id, KIP-516).
//!
//! A deletion is durable before it is answered. One by id never hits a topic that was created anew under the name.

use super::deadline::Deadline;
use super::refusal::Refusal;
use super::side_by_side::side_by_side;
use super::RequestContext;
use crate::cluster::ClusterImage;
use crate::types::TopicId;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;
use std::collections::BTreeMap;

const BY_STATE: i16 = 6;

pub async fn handle(cx: &RequestContext, req: DeleteTopicsRequest) -> DeleteTopicsResponse {
    let deadline = Deadline::new(&cx.broker.env.clock, req.timeout_ms);
    let asked = if cx.api_version >= BY_STATE {
        req.topics
    } else {
        let by_name = |name| DeleteTopicState::default().with_name(Some(name));
        req.topic_names.into_iter().map(by_name).collect()
    };
    let image = cx.broker.cluster.image();
    let work = targets(&image, asked).into_iter().map(|(state, target)| async {
        let outcome = match &target {
            Ok(target) => delete(cx, &deadline, target.clone()).await,
            Err(refusal) => Err(refusal.clone()),
        };
        result(state, target.ok(), outcome)
    });
    let work: Vec<_> = work.collect();
    DeleteTopicsResponse::default().with_responses(side_by_side(work).await)
}

/// One incarnation of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    name: String,
    id: TopicId,
}

/// What each entry of the request means. A topic that two entries mean is refused for both.
fn targets(
    image: &ClusterImage,
    asked: Vec<DeleteTopicState>,
) -> Vec<(DeleteTopicState, Result<Target, Refusal>)> {
    let found: Vec<_> = asked
        .into_iter()
        .map(|state| {
            let target = find(image, &state);
            (state, target)
        })
        .collect();
    let mut times: BTreeMap<TopicId, u32> = BTreeMap::new();
    for target in found.iter().filter_map(|(_, t)| t.as_ref().ok()) {
        *times.entry(target.id).or_default() += 1;
    }
    let refuse_repeated = |target: Target| match times.get(&target.id) {
        Some(n) if *n > 1 => Err(Refusal::invalid_request("the topic stands more than once in the request")),
        _ => Ok(target),
    };
    found.into_iter().map(|(state, target)| (state, target.and_then(refuse_repeated))).collect()
}

fn find(image: &ClusterImage, state: &DeleteTopicState) -> Result<Target, Refusal> {
    let id = TopicId(state.topic_id);
    let topic = match (&state.name, state.topic_id.is_nil()) {
        (Some(name), true) => image.topic(name).ok_or_else(|| Refusal::unknown_topic(name)),
        (None, false) => image
            .topic_by_id(id)
            .ok_or_else(|| Refusal::new(ResponseError::UnknownTopicId, format!("no topic has the id {id}"))),
        (Some(_), false) => Err(Refusal::invalid_request("a topic is named by name or by id, not by both")),
        (None, true) => Err(Refusal::invalid_request("neither a topic's name nor its id is given")),
    }?;
    Ok(Target { name: topic.name.clone(), id: topic.id })
}

async fn delete(cx: &RequestContext, deadline: &Deadline, target: Target) -> Result<(), Refusal> {
    let cluster = cx.broker.cluster.clone();
    deadline
        .run(async move { cluster.delete_incarnation(&target.name, target.id).await.map_err(Refusal::from) })
        .await
}

fn result(
    asked: DeleteTopicState,
    target: Option<Target>,
    outcome: Result<(), Refusal>,
) -> DeletableTopicResult {
    let result = match target {
        Some(target) => DeletableTopicResult::default()
            .with_name(Some(TopicName(StrBytes::from_string(target.name))))
            .with_topic_id(target.id.0),
        None => DeletableTopicResult::default().with_name(asked.name).with_topic_id(asked.topic_id),
    };
    let (code, text) = super::refusal::code_and_text(outcome);
    result.with_error_code(code).with_error_message(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::TopicImage;
    use std::sync::Arc;
    use uuid::Uuid;

    const A: Uuid = Uuid::from_u128(0xa000);
    const B: Uuid = Uuid::from_u128(0xb000);

    fn image() -> ClusterImage {
        let mut image = ClusterImage::default();
        for (name, id) in [("a", A), ("b", B)] {
            let id = TopicId(id);
            let topic = TopicImage {
                leaders: Vec::new(),
                epochs: Vec::new(),
                disowned: Default::default(),
                name: name.to_owned(),
                id,
                partitions: 1,
                overrides: BTreeMap::new(),
                config: Arc::default(),
            };
            image.topics.insert(name.to_owned(), Arc::new(topic));
            image.names.insert(id, name.to_owned());
        }
        image
    }

    fn state(name: Option<&'static str>, id: Uuid) -> DeleteTopicState {
        DeleteTopicState::default()
            .with_name(name.map(|n| TopicName(StrBytes::from_static_str(n))))
            .with_topic_id(id)
    }

    fn meant(asked: Vec<DeleteTopicState>) -> Vec<Result<String, i16>> {
        let targets = targets(&image(), asked);
        targets.into_iter().map(|(_, t)| t.map(|t| t.name).map_err(|r| r.code())).collect()
    }

    #[test]
    fn a_topic_is_found_by_name_or_by_id() {
        let asked = vec![state(Some("a"), Uuid::nil()), state(None, B)];
        assert_eq!(meant(asked), [Ok("a".to_owned()), Ok("b".to_owned())]);
    }

    #[test]
    fn what_is_not_there_says_so_in_its_own_terms() {
        let unknown = Uuid::from_u128(0xc000);
        assert_eq!(meant(vec![state(Some("c"), Uuid::nil()), state(None, unknown)]), [Err(3), Err(100)]);
        assert_eq!(meant(vec![state(Some("a"), A), state(None, Uuid::nil())]), [Err(42), Err(42)]);
    }

    #[test]
    fn a_topic_that_is_meant_twice_is_not_deleted() {
        let asked = vec![state(Some("a"), Uuid::nil()), state(None, A), state(None, B)];
        assert_eq!(meant(asked), [Err(42), Err(42), Ok("b".to_owned())]);
    }
}
