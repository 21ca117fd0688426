//! What the stories need: a clock, topics, and what a client would say.

use crate::config::{GroupConfig, StorageConfig};
use crate::coordinator::consumer::{Lookup, Topic};
use crate::coordinator::fake_log::FakeLog;
use crate::coordinator::group::{Caller, JoinInput, JoinReply, SyncInput};
use crate::coordinator::slot_log::SlotLog;
use crate::coordinator::{slot_of, CommitInput, Committed, GroupSettings, Groups, Place, Topics, SLOTS};
use crate::rt::{Clock, Env, SeededEntropy, SoloHost};
use crate::types::TopicId;
use crate::volume::MemVolume;
use bytes::Bytes;
use kafka_protocol::ResponseError;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Runs a story in time that passes only while everything waits.
pub fn story<T>(f: impl Future<Output = T>) -> T {
    #[cfg(not(madsim))]
    {
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        rt.expect("a runtime").block_on(f)
    }
    #[cfg(madsim)]
    madsim::runtime::Runtime::new().block_on(f)
}

/// Both clocks run with the runtime's.
pub struct StoryClock(tokio::time::Instant);

impl Clock for StoryClock {
    fn boot(&self) -> Duration {
        Duration::from_secs(1000) + self.0.elapsed()
    }

    fn wall_ms(&self) -> i64 {
        1_700_000_000_000 + i64::try_from(self.0.elapsed().as_millis()).unwrap()
    }
}

/// Topics that a test makes and deletes.
#[derive(Default)]
pub struct TestTopics(pub Mutex<BTreeSet<TopicId>>);

impl Topics for TestTopics {
    fn exists(&self, id: TopicId) -> bool {
        self.0.lock().contains(&id)
    }
}

/// Topic 1 is "t", with two partitions.
impl Lookup for TestTopics {
    fn topic(&self, name: &str) -> Option<Topic> {
        let t = Topic { id: topic(1), partitions: 2 };
        (name == "t" && self.exists(t.id)).then_some(t)
    }
}

pub fn topic(n: u128) -> TopicId {
    TopicId(uuid::Uuid::from_u128(n))
}

pub fn topics() -> Arc<TestTopics> {
    let topics = TestTopics::default();
    topics.0.lock().insert(topic(1));
    Arc::new(topics)
}

pub fn env(volume: MemVolume) -> Env {
    Env {
        volume: Arc::new(volume),
        clock: Arc::new(StoryClock(tokio::time::Instant::now())),
        entropy: Arc::new(SeededEntropy::new(7)),
        host: Arc::new(SoloHost { name: "h".into(), boot: "b".into() }),
    }
}

/// Without the initial delay, so that a story is short.
pub fn settings() -> GroupSettings {
    let groups = GroupConfig { initial_rebalance_delay: Duration::ZERO, ..GroupConfig::default() };
    GroupSettings::new(&groups, &StorageConfig::default())
}

pub fn committed(offset: i64) -> Committed {
    Committed {
        topic: "t".to_owned(),
        offset,
        leader_epoch: -1,
        metadata: "m".to_owned(),
        committed_at: 1_700_000_000_000,
        expires_at: None,
    }
}

/// A commit of a client without a group protocol.
pub async fn commit(groups: &Groups, group: &str, partition: i32, offset: i64) -> Result<(), ResponseError> {
    commit_as(groups, group, simple(), partition, offset).await
}

pub async fn commit_as(
    groups: &Groups,
    group: &str,
    caller: Caller,
    partition: i32,
    offset: i64,
) -> Result<(), ResponseError> {
    let committed = Committed { committed_at: groups_now(groups), ..committed(offset) };
    let offsets = vec![((topic(1), partition), committed)];
    groups.commit(group, CommitInput { caller, names_epochs: true, offsets }).await
}

fn groups_now(groups: &Groups) -> i64 {
    groups.clock().wall_ms()
}

pub fn simple() -> Caller {
    Caller { generation: -1, ..Caller::default() }
}

/// Partition and offset of all that is committed.
pub async fn offsets(groups: &Groups, group: &str) -> Result<Vec<(i32, i64)>, ResponseError> {
    let all = groups.offsets(group).await?;
    Ok(all.into_iter().map(|((_, p), c): (Place, Committed)| (p, c.offset)).collect())
}

/// Asks until the coordinator is there: clients retry 14, 15 and 16.
pub async fn patiently<T, F: Future<Output = Result<T, ResponseError>>>(mut ask: impl FnMut() -> F) -> T {
    for _ in 0..600 {
        match ask().await {
            Ok(answer) => return answer,
            Err(
                ResponseError::CoordinatorLoadInProgress
                | ResponseError::CoordinatorNotAvailable
                | ResponseError::NotCoordinator,
            ) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(e) => panic!("{e}"),
        }
    }
    panic!("the coordinator did not come back within a minute");
}

pub async fn ready(groups: &Groups, group: &str) {
    patiently(|| groups.offsets(group)).await;
}

pub fn member(id: &str) -> JoinInput {
    JoinInput {
        member_id: id.to_owned(),
        client_id: "client".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
        session: Duration::from_secs(10),
        rebalance: Duration::from_secs(60),
        protocol_type: "consumer".to_owned(),
        // ConsumerProtocolSubscription version 0: one topic, "t", and no user data.
        protocols: vec![("range".to_owned(), Bytes::from_static(b"\0\0\0\0\0\x01\0\x01t\xff\xff\xff\xff"))],
        ..JoinInput::default()
    }
}

/// Joins as the only member and takes everything.
pub async fn settle(groups: &Groups, group: &str) -> Caller {
    let joined: JoinReply = groups.join(group, member("")).await;
    assert_eq!(joined.error, None);
    let input = SyncInput {
        member_id: joined.member_id.clone(),
        generation: joined.generation,
        assignments: vec![(joined.member_id.clone(), Bytes::from_static(b"all"))],
        ..SyncInput::default()
    };
    let synced = groups.sync(group, input).await;
    assert_eq!((synced.error, synced.assignment), (None, Bytes::from_static(b"all")));
    Caller { member_id: joined.member_id, instance: None, generation: joined.generation }
}

/// Groups on logs that do what a test says.
pub struct Bed {
    logs: Vec<FakeLog>,
    pub groups: Arc<Groups>,
    pub topics: Arc<TestTopics>,
}

impl Bed {
    pub async fn new() -> Bed {
        Bed::with(settings()).await
    }

    pub async fn with(settings: GroupSettings) -> Bed {
        let logs: Vec<FakeLog> = (0..SLOTS).map(|_| FakeLog::new()).collect();
        let topics = topics();
        let as_slots = logs.iter().map(|l| Arc::new(l.clone()) as Arc<dyn SlotLog>).collect();
        let groups = Groups::on(env(MemVolume::new()), as_slots, topics.clone(), settings);
        ready(&groups, "g").await;
        // Past the writing of the format.
        tokio::time::sleep(Duration::from_millis(10)).await;
        Bed { logs, groups, topics }
    }

    /// The log of group "g".
    pub fn log(&self) -> &FakeLog {
        self.log_of("g")
    }

    /// The log of a group or a transactional id.
    pub fn log_of(&self, id: &str) -> &FakeLog {
        &self.logs[slot_of(id) as usize]
    }
}
