//! Hand-made histories: an honest broker of one partition, whose answers a test can bend.

use super::{judge, Evidence, Verdict};
use crate::client::records::{self, Identity};
use crate::history::*;
use bytes::Bytes;
use std::time::Duration;
use uuid::Uuid;

pub const ID: Uuid = Uuid::from_u128(7);
pub const DIR: &str = "t/00000000000000000000000000000007/0";

#[derive(Default)]
pub struct Story {
    pub evidence: Evidence,
    pub now: Duration,
    /// What the broker stores.
    pub log: Vec<BatchInfo>,
    pub bytes: Vec<Bytes>,
    pub log_start: i64,
    next: u64,
}

pub fn place() -> Place {
    Place { topic: "t".into(), partition: 0, id: Some(ID) }
}

impl Story {
    pub fn new() -> Story {
        Story::default()
    }

    /// Appends an event, a millisecond after the one before.
    pub fn record(&mut self, event: Event) -> Index {
        self.now += Duration::from_millis(1);
        self.evidence.history.push(Stamped { at: self.now, event });
        self.evidence.history.len() - 1
    }

    pub fn end(&self) -> i64 {
        self.log.last().map_or(self.log_start, |b| b.end())
    }

    /// A batch of two records that nobody sent before.
    pub fn make(&mut self, identity: Identity) -> Bytes {
        self.next += 1;
        let values = [Bytes::from(format!("{}a", self.next)), Bytes::from(format!("{}b", self.next))];
        records::batch(identity, 1000, &values)
    }

    pub fn send(&mut self, bytes: &Bytes, acks: i16, retry_of: Option<Index>) -> Index {
        let batch = BatchInfo::parse(bytes).expect("a batch");
        self.record(Event::ProduceSent { who: Who(0), at: place(), acks, batch, retry_of })
    }

    /// Appends to the log as a broker does.
    pub fn store(&mut self, bytes: &Bytes) -> i64 {
        let base = self.end();
        let mut stored = bytes.to_vec();
        stored[..8].copy_from_slice(&base.to_be_bytes());
        stored[12..16].copy_from_slice(&1i32.to_be_bytes());
        self.log.push(BatchInfo::parse(&stored).expect("a batch"));
        self.bytes.push(stored.into());
        base
    }

    pub fn done(&mut self, sent: Index, base: i64) -> Index {
        let log_start = self.log_start;
        let answer = Ok(Produced { code: 0, base, log_start });
        self.record(Event::ProduceDone { who: Who(0), sent, from: Some(FIRST_HOST), arrived: None, answer })
    }

    pub fn answered(&mut self, sent: Index, answer: Answer<Produced>) -> Index {
        self.record(Event::ProduceDone { who: Who(0), sent, from: Some(FIRST_HOST), arrived: None, answer })
    }

    /// One batch, sent, stored and acknowledged.
    pub fn produce(&mut self) -> i64 {
        self.produce_as(Identity::NONE)
    }

    pub fn produce_as(&mut self, identity: Identity) -> i64 {
        let bytes = self.make(identity);
        let sent = self.send(&bytes, -1, None);
        let base = self.store(&bytes);
        self.done(sent, base);
        base
    }

    pub fn fetched(&self, batches: Vec<BatchInfo>) -> Fetched {
        let (hwm, log_start) = (self.end(), self.log_start);
        Fetched { code: 0, hwm, lso: hwm, log_start, batches, left_over: 0 }
    }

    pub fn fetch(&mut self, who: Who, offset: i64, fetched: Fetched) -> Index {
        let started = self.now;
        let (at, max_bytes) = (place(), 1 << 20);
        let (from, answer) = (Some(FIRST_HOST), Ok(fetched));
        self.record(Event::FetchDone { who, started, at, offset, max_bytes, from, answer })
    }

    /// A consumer reads all from `offset` on.
    pub fn read(&mut self, offset: i64) -> Index {
        let batches = self.log.iter().filter(|b| b.end() > offset).copied().collect();
        self.fetch(Who(1), offset, self.fetched(batches))
    }

    /// The prover reads all.
    pub fn finish(&mut self) -> Index {
        let (from, hwm) = (self.log_start, self.end());
        let batches: Vec<BatchInfo> = self.log.iter().filter(|b| b.end() > from).copied().collect();
        self.fetch(Who::PROVER, from, self.fetched(batches));
        self.record(Event::FinalRead { at: place(), log_start: from, hwm })
    }

    pub fn verdict(&self) -> Verdict {
        judge(&self.evidence)
    }

    /// The promises that are broken, each once.
    pub fn broken(&self) -> Vec<&'static str> {
        let mut all: Vec<&str> = self.verdict().violations.iter().map(|v| v.promise).collect();
        all.sort();
        all.dedup();
        all
    }
}

/// A document as the broker writes it.
pub fn document(body: &serde_json::Value) -> Bytes {
    let body = body.to_string();
    Bytes::from(format!("{{\"crc32c\":{},\"body\":{body}}}\n", crc32c::crc32c(body.as_bytes())))
}

pub fn manifest(epoch: u32, start: i64, log_start: i64, segments: serde_json::Value) -> Bytes {
    document(&serde_json::json!({
        "format": 1, "topic_id": ID, "partition": 0, "epoch": epoch, "log_start": log_start, "start": start,
        "segments": segments, "leader_epochs": [[epoch, start]], "group_bytes": 4096, "relaxed": false,
        "has_producers": false,
    }))
}
