//! Cases from the field on what readers see of transactions.

use super::common::*;
use super::producer::*;
use super::{broker, producer};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::ListOffsetsRequest;

const LATEST: i64 = -1;
const INVALID_PRODUCER_EPOCH: i16 = 47;
const INVALID_TXN_STATE: i16 = 48;

/// A batch of no transaction, of the same time as those of transactions: a much older one has its segment to itself, and a fetch
/// ends with the segment.
fn of_now(value: &str) -> bytes::Bytes {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    batch_at(now.as_millis() as i64, &[value])
}

/// Where partition 0 of "t" ends for a reader of this isolation level.
async fn latest(client: &mut Client, isolation: i8) -> i64 {
    let partition = ListOffsetsPartition::default().with_timestamp(LATEST);
    let topic = ListOffsetsTopic::default().with_name(topic_name("t")).with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default().with_topics(vec![topic]).with_isolation_level(isolation);
    let response = client.call(7, &request).await;
    let row = &response.topics[0].partitions[0];
    assert_eq!(row.error_code, 0);
    row.offset
}

/// Partition 0 of "t" from `offset` on, as a reader of this isolation level is given it.
async fn read(client: &mut Client, isolation: i8, offset: i64) -> PartitionData {
    let request = fetch_request("t", 0, offset).with_isolation_level(isolation);
    let response = client.fetch(12, &request).await;
    assert_eq!(row(&response).error_code, 0);
    row(&response).clone()
}

fn offsets(row: &PartitionData) -> Vec<i64> {
    base_offsets(row.records.as_deref().unwrap_or_default())
}

/// The first offsets of the aborted transactions that the reader is told of; `None`: of none, not even of an empty list.
fn aborted(row: &PartitionData) -> Option<Vec<i64>> {
    row.aborted_transactions.as_ref().map(|all| all.iter().map(|a| a.first_offset).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn case_43_nothing_beyond_the_last_stable_offset_is_read_as_committed() {
    for version in Version::BOTH {
        let broker = broker().await;
        let mut client = broker.client().await;
        assert_eq!(client.produce("t", 0, of_now("plain")).await.error_code, 0);
        let mut p = producer(&broker, "p", version).await;
        assert_eq!(p.write(&mut client, "t", 0, &["open"]).await, 0);
        // What is of no transaction waits as well: it stands behind one that is open.
        assert_eq!(client.produce("t", 0, of_now("behind")).await.error_code, 0);

        let (committed, all) = (read(&mut client, 1, 0).await, read(&mut client, 0, 0).await);
        assert_eq!((offsets(&committed), offsets(&all)), (vec![0], vec![0, 1, 2]));
        assert_eq!((committed.last_stable_offset, committed.high_watermark), (1, 3));
        assert_eq!(offsets(&read(&mut client, 1, 1).await), [0i64; 0]);
        assert_eq!((latest(&mut client, 1).await, latest(&mut client, 0).await), (1, 3));

        assert_eq!(p.end(true).await, 0);
        until_stable(&mut client, "t", 0, 4).await;
        assert_eq!(offsets(&read(&mut client, 1, 0).await), [0, 1, 2, 3], "the marker is the last");
        assert_eq!((latest(&mut client, 1).await, latest(&mut client, 0).await), (4, 4));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_46_a_batch_that_comes_after_its_abort_holds_nobody_up() {
    for version in Version::BOTH {
        let broker = broker().await;
        let mut client = broker.client().await;
        let mut p = producer(&broker, "p", version).await;
        assert_eq!(p.write(&mut client, "t", 0, &["in time"]).await, 0);
        let late = p.batch("t", 0, &["late"]);
        assert_eq!(p.end(false).await, 0);
        until_stable(&mut client, "t", 0, 2).await;
        let codes: &[(i16, i16)] = match version {
            // No epoch tells the batch from one of the next transaction, but nobody confirms it.
            Version::One => &[(9, INVALID_TXN_STATE), (11, ABORTABLE)],
            // The abort has raised the epoch.
            Version::Two => &[(12, INVALID_PRODUCER_EPOCH), (13, INVALID_PRODUCER_EPOCH)],
        };
        let id = broker.node.broker().cluster.image().topic("t").expect("it is there").id;
        for (api, code) in codes {
            let mut request = p.request("t", 0, late.clone());
            request.topic_data[0].topic_id = id.0;
            let response = client.call(*api, &request).await;
            assert_eq!(response.responses[0].partition_responses[0].error_code, *code, "Produce {api}");
        }
        let end = read(&mut client, 1, 0).await;
        assert_eq!((end.last_stable_offset, end.high_watermark), (2, 2), "{version:?}");
        assert_eq!(client.produce("t", 0, of_now("others")).await.error_code, 0);
        assert_eq!(offsets(&read(&mut client, 1, 2).await), [2], "others are read at once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_47_overlapping_aborts_are_told_of_sorted_and_completely() {
    let broker = broker().await;
    let mut client = broker.client().await;
    let mut producers = Vec::new();
    for name in ["a", "b", "c"] {
        producers.push(producer(&broker, name, Version::Two).await);
    }
    // They begin at 0, 1 and 2, the first one goes on at 3, and they end in the other order.
    for p in &mut producers {
        assert_eq!(p.write(&mut client, "t", 0, &["x"]).await, 0);
    }
    assert_eq!(producers[0].write(&mut client, "t", 0, &["y"]).await, 0);
    for (i, p) in producers.iter_mut().enumerate().rev() {
        assert_eq!(p.end(false).await, 0);
        let marker = 6 - i as i64;
        while read(&mut client, 0, 0).await.high_watermark <= marker {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        if i > 0 {
            // While the first is open nothing is to be read, hence nothing to be left out.
            let row = read(&mut client, 1, 0).await;
            assert_eq!((row.last_stable_offset, offsets(&row)), (0, vec![]));
            assert_eq!(aborted(&row).unwrap_or_default(), [0i64; 0]);
        }
    }
    until_stable(&mut client, "t", 0, 7).await;
    let row = read(&mut client, 1, 0).await;
    assert_eq!((offsets(&row), aborted(&row)), ((0..7).collect(), Some(vec![0, 1, 2])));
    // Those that began before the place where the reader stands are told of as long as they last.
    let row = read(&mut client, 1, 3).await;
    assert_eq!((offsets(&row), aborted(&row)), (vec![3, 4, 5, 6], Some(vec![0, 1, 2])));
    let row = read(&mut client, 1, 5).await;
    assert_eq!(aborted(&row), Some(vec![0, 1]));
    let row = read(&mut client, 0, 0).await;
    assert_eq!((offsets(&row), aborted(&row)), ((0..7).collect(), None), "who reads all leaves nothing out");
}
