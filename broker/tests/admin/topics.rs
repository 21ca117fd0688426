//! Topics: made, shown, grown, made again, and still there after a kill.

use crate::ask::*;
use crate::common::topic_name;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableReplicaAssignment;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::*;

#[tokio::test]
async fn a_topic_is_created_with_what_was_asked_for_and_shown_so() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let made = created(&mut client, with_config(new_topic("orders", 3), "retention.ms", "1000")).await;
    assert_eq!((made.num_partitions, made.replication_factor), (3, 1));
    assert!(!made.topic_id.is_nil());
    let retention = made
        .configs
        .iter()
        .flatten()
        .find(|c| c.name.as_str() == "retention.ms")
        .expect("configs are in the answer");
    assert_eq!((retention.value.as_deref(), retention.config_source), (Some("1000"), 1));

    let shown = described(&mut client, named("orders")).await;
    assert_eq!((shown.error_code, shown.topic_id, shown.is_internal), (0, made.topic_id, false));
    assert_eq!(shown.topic_authorized_operations, i32::MIN);
    let id = BrokerId(broker.id());
    for (index, p) in (0..3).zip(&shown.partitions) {
        assert_eq!((p.error_code, p.partition_index, p.leader_id), (0, index, id));
        assert_eq!((&p.replica_nodes, &p.isr_nodes), (&vec![id], &vec![id]));
    }
    assert_eq!(shown.partitions.len(), 3);
    assert_eq!(described(&mut client, by_id(made.topic_id)).await.name, Some(topic_name("orders")));
}

#[tokio::test]
async fn metadata_says_where_the_broker_is_in_every_version() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    created(&mut client, new_topic("t", 1)).await;
    for version in 0..=12 {
        let all = if version == 0 { Some(vec![]) } else { None };
        let request = metadata_request(all, true)
            .with_include_topic_authorized_operations(version >= 8)
            .with_include_cluster_authorized_operations((8..=10).contains(&version));
        let response = client.call(version, &request).await;
        let this = &response.brokers[0];
        assert_eq!((this.node_id.0, this.host.as_str()), (broker.id(), "127.0.0.1"), "v{version}");
        assert_eq!(this.port, i32::from(broker.addr().port()), "v{version}");
        assert_eq!(this.rack, None, "v{version}");
        assert_eq!(response.topics.len(), 1, "v{version}");
        if version >= 1 {
            assert_eq!(response.controller_id.0, broker.id(), "v{version}");
        }
        if version >= 2 {
            assert_eq!(response.cluster_id.as_ref().map(|c| c.len()), Some(22), "v{version}");
        }
        if version >= 8 {
            assert_eq!(response.topics[0].topic_authorized_operations, 3576, "v{version}");
        }
        if (8..=10).contains(&version) {
            assert_eq!(response.cluster_authorized_operations, 8096, "v{version}");
        }
        if version >= 1 {
            let none = client.call(version, &metadata_request(Some(vec![]), true)).await;
            assert!(none.topics.is_empty(), "v{version}");
        }
    }
}

#[tokio::test]
async fn a_topic_that_is_asked_for_is_made_if_the_client_and_the_broker_let_it() {
    let broker = Admin::start(&[("num.partitions", "2")]).await;
    let mut client = broker.client().await;
    let ask = |name: &str, may| metadata_request(Some(vec![named(name)]), may);

    assert_eq!(client.call(9, &ask("t", false)).await.topics[0].error_code, 3);
    assert!(all_names(&mut client).await.is_empty());
    let made = client.call(9, &ask("t", true)).await;
    assert_eq!((made.topics[0].error_code, made.topics[0].partitions.len()), (0, 2));
    // Version 3 has no field to forbid it.
    assert_eq!(client.call(3, &ask("u", true)).await.topics[0].error_code, 0);
    for bad in ["no/topic", "..", "__cluster", ""] {
        assert_eq!(client.call(9, &ask(bad, true)).await.topics[0].error_code, 17, "{bad:?}");
        assert_eq!(client.call(9, &ask(bad, false)).await.topics[0].error_code, 17, "{bad:?}");
    }
    assert_eq!(all_names(&mut client).await, ["t", "u"]);

    let broker = Admin::start(&[("auto.create.topics.enable", "false")]).await;
    let mut client = broker.client().await;
    assert_eq!(client.call(9, &ask("t", true)).await.topics[0].error_code, 3);
    assert!(all_names(&mut client).await.is_empty());
}

#[tokio::test]
async fn clients_that_ask_for_a_new_topic_at_once_get_the_same_one() {
    let broker = Admin::start(&[]).await;
    let asks = (0..8).map(|_| async {
        let mut client = broker.client().await;
        let response = client.call(12, &metadata_request(Some(vec![named("t")]), true)).await;
        (response.topics[0].error_code, response.topics[0].topic_id)
    });
    let answers = futures::future::join_all(asks).await;
    assert!(!answers[0].1.is_nil());
    assert!(answers.iter().all(|a| *a == (0, answers[0].1)), "{answers:?}");
}

#[tokio::test]
async fn a_recreated_topic_is_another_one() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let first = created(&mut client, new_topic("t", 1)).await.topic_id;
    assert_eq!(delete(&mut client, "t").await, 0);
    assert_eq!(delete(&mut client, "t").await, 3);
    assert_eq!(described(&mut client, named("t")).await.error_code, 3);
    let gone = described(&mut client, by_id(first)).await;
    assert_eq!((gone.error_code, gone.name, gone.topic_id), (100, None, first));

    let second = created(&mut client, new_topic("t", 1)).await.topic_id;
    assert_ne!(first, second);
    let by_id = |id| {
        let state = DeleteTopicState::default().with_name(None).with_topic_id(id);
        DeleteTopicsRequest::default().with_topics(vec![state]).with_timeout_ms(10_000)
    };
    let missed = client.call(6, &by_id(first)).await;
    assert_eq!((missed.responses[0].error_code, missed.responses[0].name.clone()), (100, None));
    let hit = client.call(6, &by_id(second)).await;
    assert_eq!((hit.responses[0].error_code, hit.responses[0].name.clone()), (0, Some(topic_name("t"))));
    assert!(all_names(&mut client).await.is_empty());
}

#[tokio::test]
async fn what_cannot_be_created_gets_kafkas_error_and_a_sentence() {
    let broker = Admin::start(&[("max.partitions.per.request", "100"), ("max.partitions", "150")]).await;
    let mut client = broker.client().await;
    created(&mut client, new_topic("there", 1)).await;
    let assigned = |broker| {
        let one = CreatableReplicaAssignment::default().with_partition_index(0).with_broker_ids(vec![broker]);
        new_topic("assigned", -1).with_assignments(vec![one])
    };
    let cases = [
        (new_topic("there", 1), 36),
        (new_topic("a/b", 1), 17),
        (new_topic("t", 0), 37),
        (new_topic("t", -2), 37),
        (new_topic("t", 1).with_replication_factor(3), 38),
        (new_topic("t", 1).with_replication_factor(0), 38),
        (assigned(BrokerId(broker.id() + 1)), 39),
        (with_config(new_topic("t", 1), "retention.mss", "1"), 40),
        (with_config(new_topic("t", 1), "retention.ms", "soon"), 40),
        (new_topic("t", 101), 44),
        (new_topic("t", i32::MAX), 44),
    ];
    for (topic, code) in cases {
        let result = create(&mut client, topic.clone()).await;
        assert_eq!(result.error_code, code, "{topic:?}: {:?}", result.error_message);
        assert!(result.error_message.is_some_and(|m| !m.is_empty()), "{topic:?}");
        assert!(result.topic_id.is_nil());
    }
    assert_eq!(all_names(&mut client).await, ["there"]);
    created(&mut client, assigned(BrokerId(broker.id()))).await;

    created(&mut client, new_topic("many", 100)).await;
    let full = create(&mut client, new_topic("more", 49)).await;
    assert_eq!(full.error_code, 44);
    assert!(full.error_message.is_some_and(|m| m.contains("max.partitions")));
}

#[tokio::test]
async fn each_topic_of_a_request_stands_for_itself() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let topics =
        vec![new_topic("a", 1), new_topic("b", 0), new_topic("c", 1), new_topic("d", 1), new_topic("c", 2)];
    let response = client.call(7, &create_request(topics)).await;
    let codes: Vec<_> = response.topics.iter().map(|t| (t.name.to_string(), t.error_code)).collect();
    let expected = [("a", 0), ("b", 37), ("c", 42), ("d", 0)].map(|(n, c)| (n.to_owned(), c));
    assert_eq!(codes, expected);
    assert_eq!(all_names(&mut client).await, ["a", "d"]);
}

#[tokio::test]
async fn what_is_only_validated_is_not_made() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let dry = |topic| create_request(vec![topic]).with_validate_only(true);
    let fine = client.call(7, &dry(new_topic("t", 4))).await;
    assert_eq!((fine.topics[0].error_code, fine.topics[0].num_partitions), (0, 4));
    assert!(fine.topics[0].topic_id.is_nil());
    let bad = client.call(7, &dry(with_config(new_topic("t", 4), "segment.ms", "x"))).await;
    assert_eq!(bad.topics[0].error_code, 40);
    assert!(all_names(&mut client).await.is_empty());

    created(&mut client, new_topic("t", 1)).await;
    let more =
        CreatePartitionsTopic::default().with_name(topic_name("t")).with_count(5).with_assignments(None);
    let request = CreatePartitionsRequest::default()
        .with_topics(vec![more])
        .with_timeout_ms(10_000)
        .with_validate_only(true);
    assert_eq!(client.call(3, &request).await.results[0].error_code, 0);
    assert_eq!(described(&mut client, named("t")).await.partitions.len(), 1);
    assert_eq!(alter_request(&mut client, TOPIC, "t", &[("segment.ms", SET, Some("7"))], true).await, 0);
    assert_eq!(value(&mut client, "t", "segment.ms").await.1, 5);
}

#[tokio::test]
async fn a_topic_grows_and_never_shrinks() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let id = created(&mut client, new_topic("t", 2)).await.topic_id;
    for (count, code) in [(2, 37), (1, 37), (0, 37), (4, 0)] {
        let topic = CreatePartitionsTopic::default()
            .with_name(topic_name("t"))
            .with_count(count)
            .with_assignments(None);
        let request = CreatePartitionsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        assert_eq!(client.call(3, &request).await.results[0].error_code, code, "{count}");
    }
    let shown = described(&mut client, named("t")).await;
    assert_eq!((shown.partitions.len(), shown.topic_id), (4, id));
    assert!(shown.partitions.iter().all(|p| p.error_code == 0));
}

#[tokio::test]
async fn topics_configs_and_producer_ids_outlive_a_kill() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let id = created(&mut client, with_config(new_topic("t", 3), "segment.ms", "5000")).await.topic_id;
    created(&mut client, new_topic("gone", 1)).await;
    assert_eq!(delete(&mut client, "gone").await, 0);
    let first = client.call(4, &InitProducerIdRequest::default().with_transactional_id(None)).await;

    let broker = broker.kill_and_restart().await;
    let mut client = broker.client().await;
    assert_eq!(all_names(&mut client).await, ["t"]);
    let shown = described(&mut client, named("t")).await;
    assert_eq!((shown.topic_id, shown.partitions.len()), (id, 3));
    assert_eq!(value(&mut client, "t", "segment.ms").await, ("5000".to_owned(), 1));
    let second = client.call(4, &InitProducerIdRequest::default().with_transactional_id(None)).await;
    assert_eq!((first.error_code, second.error_code), (0, 0));
    assert_ne!(first.producer_id, second.producer_id);
}
