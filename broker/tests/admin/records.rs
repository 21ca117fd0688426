//! DeleteRecords.

use crate::ask::*;
use crate::common::{topic_name, Client};
use kafka_protocol::messages::*;

#[tokio::test]
async fn case_40_delete_records_edges() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    created(&mut client, new_topic("t", 1)).await;
    for offset in [0, 10, 20] {
        assert_eq!(produce(&mut client, "t", batch(10, 100)).await, (0, offset));
    }
    assert_eq!(delete_records(&mut client, "t", 12).await, (0, 12));
    assert_eq!(
        delete_records(&mut client, "t", 5).await,
        (0, 12),
        "below the start: nothing happens, no error"
    );
    assert_eq!(delete_records(&mut client, "t", 0).await, (0, 12));
    assert_eq!(delete_records(&mut client, "t", 31).await, (1, -1), "past the high watermark");
    assert_eq!(delete_records(&mut client, "t", -2).await, (1, -1));
    assert_eq!(delete_records(&mut client, "t", -1).await, (0, 30), "-1 is the high watermark");
    assert_eq!(delete_records(&mut client, "t", -1).await, (0, 30), "a full purge, twice");
    assert_eq!(delete_records(&mut client, "t", 30).await, (0, 30));
    assert_eq!(produce(&mut client, "t", batch(1, 100)).await, (0, 30), "still writable");
    assert_eq!(delete_records(&mut client, "no-such-topic", 0).await, (3, -1));

    created(&mut client, with_config(new_topic("c", 1), "cleanup.policy", "compact")).await;
    assert_eq!(delete_records(&mut client, "c", -1).await, (44, -1));
}

#[tokio::test]
async fn what_delete_records_took_is_off_the_disk_and_stays_away() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    created(&mut client, with_config(new_topic("t", 1), "segment.bytes", "1048576")).await;
    for _ in 0..4 {
        assert_eq!(produce(&mut client, "t", batch(1, 700 << 10)).await.0, 0);
    }
    let before = log_size(&mut client, "t").await;
    assert!(before > 4 * (700 << 10), "{before}");
    assert_eq!(delete_records(&mut client, "t", -1).await, (0, 4));
    let after = log_size(&mut client, "t").await;
    assert!(after < 1 << 20, "{after} of {before} bytes are left");

    drop(client);
    let broker = broker.kill_and_restart().await;
    let mut client = broker.client().await;
    assert_eq!(delete_records(&mut client, "t", 0).await, (0, 4), "the log start outlives a kill");
}

async fn log_size(client: &mut Client, topic: &str) -> i64 {
    let response = client.call(4, &DescribeLogDirsRequest::default().with_topics(None)).await;
    let dir = &response.results[0];
    assert_eq!((response.error_code, dir.error_code), (0, 0));
    assert!(dir.total_bytes >= dir.usable_bytes && dir.usable_bytes > 0);
    let topic = dir.topics.iter().find(|t| t.name == topic_name(topic)).expect("the topic is there");
    assert!(topic.partitions.iter().all(|p| !p.is_future_key && p.offset_lag == 0));
    topic.partitions.iter().map(|p| p.partition_size).sum()
}
