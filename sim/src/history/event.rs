//! The kinds of events.
//!
//! A call of a client is one or two events. Where the request itself matters before its answer is there
//! (what was sent may take effect whether an answer comes or not), there is a `…Sent` and a `…Done` that
//! names it; else one event at its end that says when it began. No answer is [`Lost`], never a failure.

use super::{BatchInfo, Index};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// A client, by number. [`Who::PROVER`] is the one that looks at everything in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Who(pub u32);

impl Who {
    pub const PROVER: Who = Who(u32::MAX);
    /// The one that made the topics.
    pub const FOUNDER: Who = Who(u32::MAX - 1);
}

/// A partition, as a client names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub topic: Arc<str>,
    pub partition: i32,
    /// The id that the name surely stood for, from the sending of the request to the coming of its answer;
    /// `None` while a topic of this name was being made or deleted.
    pub id: Option<Uuid>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Lost {
    /// Nothing was sent: no connection could be had. The request surely has no effect.
    NotSent(String),
    /// It was sent, and no answer came in time. It may take effect, or have taken it.
    TimedOut,
    /// It was sent, and the connection ended. It may take effect, or have taken it.
    CutOff(String),
    /// An answer came that can't be read. No broker may send such a one.
    Garbled(String),
    /// It was sent, and no answer is ever sent to such a request (acks=0).
    Unanswered,
}

/// What came of a call.
pub type Answer<T> = Result<T, Lost>;

/// A Kafka error code; 0 is none.
pub type Code = i16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Produced {
    pub code: Code,
    pub base: i64,
    pub log_start: i64,
}

/// A partition's row of a fetch response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fetched {
    pub code: Code,
    pub hwm: i64,
    pub lso: i64,
    pub log_start: i64,
    pub batches: Vec<BatchInfo>,
    /// Bytes after the last whole batch.
    pub left_over: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listed {
    pub code: Code,
    pub offset: i64,
    pub timestamp: i64,
    pub epoch: i32,
}

/// A group's offset as a broker gave it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CommittedOffset {
    pub at: Place,
    pub code: Code,
    /// -1: none is committed.
    pub offset: i64,
    /// The [`Event::CommitSent`] that it is from, as its metadata says: every commit is told from every other.
    pub commit: Option<Index>,
}

/// What a group member asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Membership {
    Join,
    Sync,
    Heartbeat,
    Leave,
}

/// The first host of a world.
pub const FIRST_HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1));

/// What a broker, or its host, went through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    Starting,
    Serving,
    /// It could not start, or could not go on.
    Failed,
    /// SIGKILL: the host's page cache stays.
    Killed,
    /// The host lost power.
    PowerCut,
    Paused,
    Resumed,
    /// SIGTERM.
    Term,
    /// It ended by itself, cleanly.
    Stopped,
}

/// What a fault bears on: which promises it may excuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// Requests or answers may be late or lost on the way.
    Network,
    /// The volume is slow or stuck.
    Stall,
    /// The volume refuses: errors, no space, short writes.
    Error,
    /// What was on the media was damaged, or what was acknowledged there was dropped.
    Damage,
    /// The volume's server restarted.
    ServerRestart,
    Clock,
    Other,
}

/// The phase of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Faults come and go.
    Chaos,
    /// No fault any more; clients go on.
    Heal,
    /// Clients have stopped; everything is looked at.
    Prove,
    Done,
}

#[derive(Clone, Debug, Hash)]
pub enum Event {
    Phase(Phase),
    /// Something that no checker needs and a reader may want.
    Note(String),
    Broker {
        broker: u32,
        /// Where its process runs, or ran.
        host: IpAddr,
        life: Life,
    },
    FaultIn {
        id: u64,
        kind: FaultKind,
        what: String,
    },
    FaultOut {
        id: u64,
    },

    /// A client that begins, and what it is for.
    ClientStarted {
        who: Who,
        what: &'static str,
    },
    ProduceSent {
        who: Who,
        at: Place,
        acks: i16,
        batch: BatchInfo,
        /// The first attempt with this batch, if this is another.
        retry_of: Option<Index>,
    },
    ProduceDone {
        who: Who,
        sent: Index,
        /// Whose answer it is; `None` if the request was not sent.
        from: Option<IpAddr>,
        /// When the answer came, or it was clear that none comes: the client may have been busy, and late to look.
        /// `None` if the request was not sent.
        arrived: Option<Duration>,
        answer: Answer<Produced>,
    },
    /// A producer id was given out. `before`: the one that is renewed (KIP-360).
    ProducerId {
        who: Who,
        started: Duration,
        answer: Answer<(Code, i64, i16)>,
    },
    FetchDone {
        who: Who,
        started: Duration,
        at: Place,
        offset: i64,
        max_bytes: i32,
        /// Whose answer it is; `None` if the request was not sent.
        from: Option<IpAddr>,
        answer: Answer<Fetched>,
    },
    ListOffsetsDone {
        who: Who,
        started: Duration,
        at: Place,
        timestamp: i64,
        /// Asked by a consumer of committed records: the end is then the last stable offset.
        committed: bool,
        from: Option<IpAddr>,
        answer: Answer<Listed>,
    },

    /// A member joined, synced, beat or left.
    MemberDone {
        who: Who,
        started: Duration,
        group: Arc<str>,
        call: Membership,
        member: Arc<str>,
        /// After a join: the group's; else the one that the member sent.
        generation: i32,
        answer: Answer<Code>,
    },
    CommitSent {
        who: Who,
        group: Arc<str>,
        /// -1 and an empty member: a commit from outside the group.
        generation: i32,
        member: Arc<str>,
        offsets: Vec<(Place, i64)>,
    },
    /// A code for each offset that was sent.
    CommitDone {
        who: Who,
        sent: Index,
        answer: Answer<Vec<Code>>,
    },
    OffsetsFetched {
        who: Who,
        started: Duration,
        group: Arc<str>,
        /// Asked for what no open transaction may change any more (KIP-447).
        stable: bool,
        answer: Answer<Vec<CommittedOffset>>,
    },

    CreateTopicSent {
        who: Who,
        topic: Arc<str>,
        partitions: i32,
        configs: Vec<(String, String)>,
    },
    CreateTopicDone {
        who: Who,
        sent: Index,
        answer: Answer<(Code, Option<Uuid>)>,
    },
    /// Topics are deleted by id: a late request can't hit another topic of the same name.
    DeleteTopicSent {
        who: Who,
        topic: Arc<str>,
        id: Uuid,
    },
    DeleteTopicDone {
        who: Who,
        sent: Index,
        answer: Answer<Code>,
    },
    CreatePartitionsDone {
        who: Who,
        started: Duration,
        topic: Arc<str>,
        count: i32,
        answer: Answer<Code>,
    },
    /// -1: up to the high watermark.
    DeleteRecordsSent {
        who: Who,
        at: Place,
        to: i64,
    },
    /// The code, and the log start from then on.
    DeleteRecordsDone {
        who: Who,
        sent: Index,
        answer: Answer<(Code, i64)>,
    },
    AlterConfigSent {
        who: Who,
        topic: Arc<str>,
        id: Option<Uuid>,
        key: String,
        /// `None`: the broker's default again.
        value: Option<String>,
    },
    AlterConfigDone {
        who: Who,
        sent: Index,
        answer: Answer<Code>,
    },
    /// Metadata as a client saw it: the partitions of a topic.
    TopicSeen {
        who: Who,
        topic: Arc<str>,
        id: Uuid,
        partitions: i32,
    },

    /// A broker's metadata says something else of a partition than it did before.
    LeaderShown {
        who: Who,
        by: IpAddr,
        /// When it was asked: answers may overtake each other.
        asked: Duration,
        at: Place,
        /// −1: nobody.
        leader: i32,
        epoch: i32,
    },

    /// A transactional producer asked for its id: a new incarnation did, or (`current`) one had its epoch raised
    /// (KIP-360). What came before under an older epoch is fenced from the answer on.
    TxnInit {
        who: Who,
        started: Duration,
        id: Arc<str>,
        /// Counts the processes that have had this transactional id, from 1 on.
        incarnation: u32,
        current: Option<(i64, i16)>,
        answer: Answer<(Code, i64, i16)>,
    },
    /// A transaction begins, as its producer sees it; the index of this event names it.
    TxnBegun {
        who: Who,
        id: Arc<str>,
        incarnation: u32,
        producer: (i64, i16),
        /// transaction.version 2 (KIP-890).
        version2: bool,
        /// After how long the coordinator aborts it.
        timeout: Duration,
    },
    /// Partitions or a group were added.
    TxnAdded {
        who: Who,
        started: Duration,
        txn: Index,
        what: String,
        answer: Answer<Code>,
    },
    /// What the event before sent (a [`Event::ProduceSent`] or a [`Event::CommitSent`]) is part of a transaction.
    TxnPart {
        txn: Index,
        sent: Index,
    },
    /// A producer decided; each attempt to say so is one event.
    TxnEndSent {
        who: Who,
        txn: Index,
        commit: bool,
    },
    /// Under version 2: with the producer id and epoch from then on.
    TxnEndDone {
        who: Who,
        sent: Index,
        answer: Answer<(Code, i64, i16)>,
    },
    /// An incarnation was told that it is over.
    TxnFenced {
        who: Who,
        id: Arc<str>,
        incarnation: u32,
        code: Code,
    },
    /// A [`Event::FetchDone`] was a read_committed one: what was said to be aborted (producer id, first offset), and
    /// the base offsets of the batches that a consumer was shown.
    CommittedRead {
        who: Who,
        fetch: Index,
        aborted: Vec<(i64, i64)>,
        visible: Vec<i64>,
    },
    /// A pipeline made what it sent (`sent`: a [`Event::ProduceSent`]) of what it consumed: all that a read_committed
    /// consumer is shown of `input` from one offset up to another.
    PipeStep {
        who: Who,
        txn: Index,
        group: Arc<str>,
        input: Place,
        from: i64,
        to: i64,
        sent: Index,
    },
    /// The prover read all of a partition as a read_committed consumer, from its log start to the last stable offset.
    FinalCommitted {
        at: Place,
        lso: i64,
        hwm: i64,
    },

    /// The prover read all of a partition, from its log start to its end.
    FinalRead {
        at: Place,
        log_start: i64,
        hwm: i64,
    },
    /// The prover gave up on something that must come back (P13), or that must be read.
    NotProven {
        what: String,
    },
    /// A producer's probe in the prove phase was acknowledged.
    Proven {
        what: String,
        took: Duration,
    },
}
