//! Fetch and Produce that name topics by id (KIP-516), over the wire.

mod common;

use common::*;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{DeleteTopicsRequest, FetchRequest, MetadataRequest, ProduceRequest};
use kafka_protocol::ResponseError;
use uuid::Uuid;

async fn id_of(client: &mut Client, topic: &str) -> Uuid {
    let topic = MetadataRequestTopic::default().with_name(Some(topic_name(topic)));
    let request = MetadataRequest::default().with_topics(Some(vec![topic]));
    let response = client.call(12, &request).await;
    response.topics[0].topic_id
}

fn produce_by_id(id: Uuid, value: &str) -> ProduceRequest {
    let mut request = produce_request("", 0, -1, batch(&[value]));
    request.topic_data[0].topic_id = id;
    request
}

fn fetch_by_id(id: Uuid) -> FetchRequest {
    let mut request = fetch_request("", 0, 0);
    request.topics[0].topic_id = id;
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_written_and_read_by_the_id_of_their_topic() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    let id = id_of(&mut client, "t").await;
    assert!(!id.is_nil());
    let response = client.call(13, &produce_by_id(id, "a")).await;
    let topic = &response.responses[0];
    assert_eq!((topic.topic_id, topic.partition_responses[0].error_code), (id, 0));
    for version in 13..=17 {
        let response = client.fetch(version, &fetch_by_id(id)).await;
        assert_eq!(response.responses[0].topic_id, id, "version {version}");
        let row = row(&response);
        assert_eq!((row.error_code, row.high_watermark), (0, 1), "version {version}");
        assert_eq!(base_offsets(row.records.as_ref().unwrap()), [0], "version {version}");
    }
    // By name it is the same one.
    assert_eq!(row(&client.fetch(12, &fetch_request("t", 0, 0)).await).high_watermark, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_meant_for_a_deleted_topic_does_not_reach_the_next_of_its_name() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    let old = id_of(&mut client, "t").await;
    let delete =
        DeleteTopicsRequest::default().with_topic_names(vec![topic_name("t")]).with_timeout_ms(5_000);
    assert_eq!(client.call(5, &delete).await.responses[0].error_code, 0);
    client.create_topic("t", 1, &[]).await;
    let new = id_of(&mut client, "t").await;
    assert_ne!(old, new);
    let unknown = ResponseError::UnknownTopicId.code();
    for id in [old, Uuid::nil(), Uuid::from_u128(7)] {
        let response = client.call(13, &produce_by_id(id, "late")).await;
        assert_eq!(response.responses[0].partition_responses[0].error_code, unknown);
        for version in 13..=17 {
            assert_eq!(row(&client.fetch(version, &fetch_by_id(id)).await).error_code, unknown);
        }
    }
    let row = row(&client.fetch(17, &fetch_by_id(new)).await).clone();
    assert_eq!((row.error_code, row.high_watermark), (0, 0));
}
