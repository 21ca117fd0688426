//! Any history of transactions against a model of a few lines: a reader of committed records is shown what the model
//! says, whatever crashes come between, and every marker is in the log once.

use super::bed::*;
use super::transactions::{marker, ID};
use crate::config::{StorageConfig, TopicConfig};
use crate::storage::marker::Written;
use crate::storage::*;
use crate::types::{Offset, TopicId};
use crate::volume::{MemVolume, Op};
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::time::Duration;

const PRODUCERS: i64 = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A record of this producer's present transaction, which may be its first.
    Write(i64),
    Plain,
    End {
        producer: i64,
        commit: bool,
        /// The marker raises the producer epoch (KIP-890).
        bump: bool,
    },
    /// A copy of the marker of the transaction before, late.
    Late(i64),
    /// A marker is under way for so many steps of the runtime when the process, or the machine, dies.
    DieInMarker {
        producer: i64,
        commit: bool,
        steps: u8,
        power: bool,
    },
    Kill,
    PowerCut,
    Stop,
    /// So many tenths of the log.
    Delete(u8),
    /// Such a call fails during the next step, on a file with this in its name.
    Fail(u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let producer = || 0..PRODUCERS;
    prop_oneof![
        8 => producer().prop_map(Step::Write),
        2 => Just(Step::Plain),
        5 => (producer(), any::<bool>(), any::<bool>())
            .prop_map(|(producer, commit, bump)| Step::End { producer, commit, bump }),
        1 => producer().prop_map(Step::Late),
        1 => (producer(), any::<bool>(), 0u8..30, any::<bool>())
            .prop_map(|(producer, commit, steps, power)| Step::DieInMarker { producer, commit, steps, power }),
        1 => Just(Step::Kill),
        1 => Just(Step::PowerCut),
        1 => Just(Step::Stop),
        1 => (0u8..8).prop_map(Step::Delete),
        1 => (0u8..5, 0u8..4).prop_map(|(op, file)| Step::Fail(op, file)),
    ]
}

/// A producer, as its coordinator knows it.
#[derive(Clone, Default)]
struct Producer {
    epoch: i16,
    sequence: i32,
    /// Of the present transaction.
    number: u64,
    open: Vec<i64>,
    /// The marker of the transaction before.
    last: Option<Marker>,
}

/// What was written, and what became of it.
#[derive(Default)]
struct Model {
    producers: BTreeMap<i64, Producer>,
    records: Vec<i64>,
    aborted: Vec<i64>,
    log_start: i64,
}

impl Model {
    fn shown(&self) -> Vec<i64> {
        let open = self.producers.values().filter_map(|p| p.open.first());
        let lso = open.min().copied().unwrap_or(i64::MAX).max(self.log_start);
        let is_shown = |r: &i64| *r >= self.log_start && *r < lso && !self.aborted.contains(r);
        self.records.iter().copied().filter(is_shown).collect()
    }

    /// The marker that ends the present transaction.
    fn end(&self, producer: i64, commit: bool, bump: bool) -> Marker {
        let p = self.producers.get(&producer).cloned().unwrap_or_default();
        marker(ID + producer, p.epoch + i16::from(bump), commit, p.number)
    }

    fn ended(&mut self, producer: i64, m: Marker) {
        let p = self.producers.entry(producer).or_default();
        if m.producer_epoch > p.epoch {
            (p.epoch, p.sequence) = (m.producer_epoch, 0);
        }
        p.number += 1;
        p.last = Some(m);
        let records = std::mem::take(&mut p.open);
        if !m.commit {
            self.aborted.extend(records);
        }
    }
}

/// As clients and coordinators do: again, until it is done.
async fn insist(bed: &Bed, m: Marker) {
    loop {
        match bed.drive(m).await {
            Ok(()) => return,
            Err(MarkerError::Storage(_) | MarkerError::NotLeader) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(e) => panic!("{m:?}: {e}"),
        }
    }
}

async fn insist_on_record(bed: &Bed, id: i64, p: &Producer) -> i64 {
    loop {
        match bed.write(id, p.epoch, p.sequence, p.number).await {
            Ok(at) => return at,
            Err(AppendError::Storage(_) | AppendError::NotLeader) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(e) => panic!("{id}: {e}"),
        }
    }
}

async fn take(mut bed: Bed, model: &mut Model, step: Step) -> Bed {
    match step {
        Step::Write(i) => {
            let p = model.producers.entry(i).or_default();
            let at = insist_on_record(&bed, ID + i, p).await;
            p.sequence += 1;
            p.open.push(at);
            model.records.push(at);
        }
        Step::Plain => loop {
            let plain = crate::storage::batch::testing::plain(1, b"plain");
            match bed.append(plain).await {
                Ok(a) => break model.records.push(a.base_offset.0),
                // It may be there: a plain record has no sequence, so the model asks.
                Err(_) => {
                    bed.volume.heal();
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    let known = model.records.len();
                    model.records = all(&bed, model.log_start).await;
                    if model.records.len() > known {
                        break;
                    }
                }
            }
        },
        Step::End { producer, commit, bump } => {
            let m = model.end(producer, commit, bump);
            insist(&bed, m).await;
            model.ended(producer, m);
        }
        Step::Late(i) => {
            if let Some(m) = model.producers.get(&i).and_then(|p| p.last) {
                let told = bed.drive(m).await;
                assert!(!matches!(told, Err(MarkerError::OfAnother { .. } | MarkerError::Unverified { .. })));
            }
        }
        Step::DieInMarker { producer, commit, steps, power } => {
            let m = model.end(producer, commit, false);
            let p = bed.partition.clone();
            drop(tokio::spawn(async move { p.write_marker(m, None).await }));
            for _ in 0..steps {
                tokio::task::yield_now().await;
            }
            bed = if power { bed.power_cut(u64::from(steps)) } else { bed.kill() };
            insist(&bed, m).await;
            model.ended(producer, m);
        }
        Step::Kill => bed = bed.kill(),
        Step::PowerCut => bed = bed.power_cut(5),
        Step::Stop => {
            bed.engine.shutdown().await;
            bed = bed.kill();
        }
        Step::Delete(tenths) => {
            if let Ok(marks) = bed.partition.marks().await {
                let to = marks.log_start.0 + (marks.hwm.0 - marks.log_start.0) * i64::from(tenths) / 10;
                drop(bed.partition.delete_records(Some(Offset(to))).await);
            }
        }
        Step::Fail(op, file) => {
            let op = [Op::Create, Op::Write, Op::Sync, Op::Rename, Op::SyncDir][usize::from(op)];
            let file = [".log", ".aborted", "checkpoint", ""][usize::from(file)];
            bed.volume.fail(op, file, Errno::IO, 1);
        }
    }
    bed
}

/// Offsets of all records but markers.
async fn all(bed: &Bed, from: i64) -> Vec<i64> {
    let (mut at, mut found) = (from, Vec::new());
    loop {
        let read = loop {
            match bed.fetch(at, 1 << 20).await {
                Ok(read) => break read,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        if read.records.is_empty() {
            return found;
        }
        for (h, _) in batches(&read.records) {
            at = h.next_offset().0;
            found.extend((!h.is_control()).then_some(h.base_offset));
        }
    }
}

/// Every marker with a number is in the log once.
async fn markers_are_single(bed: &Bed, from: i64) {
    let mut seen = std::collections::BTreeSet::new();
    let read = bed.fetch(from, 1 << 20).await.unwrap();
    for (h, bytes) in batches(&read.records).iter().filter(|(h, _)| h.is_control()) {
        let m = Written::parse(bytes, h).unwrap();
        assert!(seen.insert((m.producer_id, m.number)), "the marker of {:?} is there twice", m.number);
    }
}

async fn history(steps: Vec<Step>, segment: u64, checkpoint: u64) {
    let config = StorageConfig { checkpoint_bytes: checkpoint, ..small() };
    let topic = TopicConfig { segment_bytes: segment, ..small_topic() };
    let mut bed = Bed::with(MemVolume::new(), config, topic);
    let mut model = Model::default();
    for step in steps {
        bed = take(bed, &mut model, step).await;
        if !matches!(step, Step::Fail(..)) {
            bed.volume.heal();
        }
        model.log_start = loop {
            match bed.partition.marks().await {
                Ok(marks) => break marks.log_start.0,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        assert_eq!(bed.shown().await, model.shown(), "after {step:?}");
    }
    markers_are_single(&bed, model.log_start).await;
    let found = verify::partition(&bed.volume, DIR, (TopicId(uuid::Uuid::from_u128(7)), 0)).await.unwrap();
    assert_eq!(found.findings, []);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn a_reader_of_committed_records_is_shown_what_the_model_says(
        steps in prop::collection::vec(step(), 1..80),
        segment in 200u64..1500,
        checkpoint in 1u64..900,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(history(steps, segment, checkpoint));
    }
}
