//! Idempotent producers (KIP-98): which batches are new, which are retries, which are wrong.
//!
//! A plain state machine. It is told of batches when they get their offsets, before they are durable: a
//! retry that arrives while the first try still waits for its sync is a duplicate too. What is written to
//! disk ([`Producers::durable`]) leaves out what lies past the durable end.
//!
//! Kafka remembers the last five batches of a producer, since a client has at most five in flight. Batches that are
//! not durable yet are remembered on top of these, so that a crash can't shrink the window.

use super::batch::{sequence_plus, Header};
use super::marker::Written;
use super::transactions::{self, Marker, MarkerError, Open, Standing, Verdict};
use super::AppendError;
use crate::reached;
use crate::types::Offset;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Batches remembered per producer.
const WINDOW: usize = 5;

/// One remembered batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    pub epoch: i16,
    pub first_sequence: i32,
    pub last_sequence: i32,
    pub base: Offset,
    pub last: Offset,
    /// Largest timestamp of the batch, ms.
    pub timestamp: i64,
}

/// One producer's recent batches, oldest first, and its transactions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Producer {
    pub id: i64,
    pub batches: VecDeque<Remembered>,
    /// Wall time (ms) of the last append; for expiry.
    pub seen: i64,
    /// Epoch and first sequence of the batch with which the memory of this producer began, if that was not its first
    /// one: what it sent before was never here, or is forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<(i16, i32)>,
    #[serde(default, skip_serializing_if = "Standing::is_default")]
    pub standing: Standing,
    /// What `standing` was before the batch or marker at an offset that may not be durable, oldest first.
    #[serde(skip)]
    before: VecDeque<(Offset, Standing)>,
}

impl Producer {
    fn new(id: i64, now: i64) -> Producer {
        let (batches, before) = (VecDeque::with_capacity(WINDOW), VecDeque::new());
        Producer { id, batches, seen: now, began: None, standing: Standing::default(), before }
    }

    /// The highest epoch that a batch or a marker had; -1 if there was none.
    pub fn epoch(&self) -> i16 {
        self.batches.back().map_or(-1, |b| b.epoch).max(self.standing.epoch)
    }

    fn set_standing(&mut self, at: Offset, durable_end: Offset, standing: Standing) {
        while self.before.front().is_some_and(|(at, _)| *at < durable_end) {
            self.before.pop_front();
        }
        self.before.push_back((at, std::mem::replace(&mut self.standing, standing)));
    }

    fn standing_at(&self, end: Offset) -> Standing {
        self.before.iter().find(|(at, _)| *at >= end).map_or(self.standing, |(_, before)| *before)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Producers {
    by_id: BTreeMap<i64, Producer>,
    /// Transactions by first offset, with that of their marker: those that hold the last stable offset back.
    unstable: BTreeMap<Offset, Option<Offset>>,
}

impl Producers {
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn restore(producers: Vec<Producer>) -> Producers {
        let by_id: BTreeMap<i64, Producer> = producers.into_iter().map(|p| (p.id, p)).collect();
        let unstable = by_id.values().filter_map(|p| Some((p.standing.open?.first, None))).collect();
        Producers { by_id, unstable }
    }

    pub fn all(&self) -> impl Iterator<Item = &Producer> {
        self.by_id.values()
    }

    pub fn standing(&self, id: i64) -> Standing {
        self.by_id.get(&id).map(|p| p.standing).unwrap_or_default()
    }

    /// The first offset of the oldest transaction that has no marker below `end`. What has one is asked for no more: `end`
    /// must not go back.
    pub fn first_unstable(&mut self, end: Offset) -> Option<Offset> {
        while let Some(first) = self.unstable.first_entry() {
            if first.get().is_none_or(|marker| marker >= end) {
                return Some(*first.key());
            }
            first.remove();
        }
        None
    }

    /// Whether a batch of the producer under this epoch is known.
    pub fn remembers(&self, id: i64, epoch: i16) -> bool {
        let last = self.by_id.get(&id).and_then(|p| p.batches.back());
        last.is_some_and(|b| b.epoch == epoch)
    }

    pub fn judge_marker(&self, m: &Marker, first: Option<Offset>) -> Result<Verdict, MarkerError> {
        let p = self.by_id.get(&m.producer_id);
        transactions::judge(m, first, &self.standing(m.producer_id), p.map_or(-1, Producer::epoch))
    }

    /// The marker as it goes to the log at `at`: with what it ends there, and what is decided then.
    pub fn marker_at(&self, m: &Marker, at: Offset) -> Written {
        let open = self.standing(m.producer_id).open;
        let first = open.map(|open| open.first);
        let others = self.unstable.iter().filter(|(o, marker)| marker.is_none() && Some(**o) != first);
        let oldest = others.map(|(o, _)| *o).next();
        Written {
            producer_id: m.producer_id,
            producer_epoch: m.producer_epoch,
            commit: m.commit,
            coordinator_epoch: m.coordinator_epoch,
            number: m.number.or(open.and_then(|open| open.number)),
            first,
            stable: oldest.unwrap_or(at.plus(1)),
            at,
        }
    }

    /// Remembers a marker.
    pub fn record_marker(&mut self, m: &Written, now: i64, durable_end: Offset) {
        let p = self.by_id.entry(m.producer_id).or_insert_with(|| Producer::new(m.producer_id, now));
        p.seen = now;
        let before = p.standing;
        let standing = Standing {
            epoch: m.producer_epoch.max(before.epoch),
            coordinator_epoch: m.coordinator_epoch.max(before.coordinator_epoch),
            open: None,
            marker: Some(m.at),
            ended: m.number.max(before.ended),
        };
        p.set_standing(m.at, durable_end, standing);
        if let Some(open) = before.open {
            self.unstable.insert(open.first, Some(m.at));
        }
    }

    /// Judges a batch that a client sent. `Ok(Some(_))`: it is in the log already, there. `Ok(None)`: append
    /// it.
    pub fn judge(&self, h: &Header) -> Result<Option<Remembered>, AppendError> {
        if !h.has_producer() {
            return Ok(None);
        }
        // Nothing is known of the producer (never seen, expired, or its records were deleted): Kafka takes any
        // sequence then (KIP-360).
        let Some(producer) = self.by_id.get(&h.producer_id) else { return Ok(None) };
        let (first, end) = (h.base_sequence, h.last_sequence());
        let current = producer.epoch();
        if h.producer_epoch < current {
            return Err(AppendError::InvalidProducerEpoch { got: h.producer_epoch, current });
        }
        // Under an epoch that a marker began, nothing was sent yet.
        let last = producer.batches.back().filter(|last| last.epoch == h.producer_epoch);
        let Some(last) = last else {
            return match first {
                0 => Ok(None),
                got => Err(AppendError::OutOfOrderSequence { got, expected: 0 }),
            };
        };
        // All that is remembered, and not the last five only: what is further back is here because it is not durable
        // yet, and its repetition must wait for that as the first try does. Clients take DUPLICATE_SEQUENCE_NUMBER,
        // which nothing waits for, for an acknowledgement.
        let same_epoch = producer.batches.iter().rev().take_while(|b| b.epoch == h.producer_epoch);
        let mut oldest = last.first_sequence;
        for b in same_epoch {
            if b.first_sequence == first && b.last_sequence == end {
                reached!("duplicate-recognised");
                return Ok(Some(*b));
            }
            oldest = b.first_sequence;
        }
        let expected = sequence_plus(last.last_sequence, 1);
        if first == expected {
            return Ok(None);
        }
        // Sequences wrap: "before" means by less than half the space.
        let behind = |a: i32, b: i32| sequence_plus(b, a.wrapping_neg() & 0x7fff_ffff) as u32;
        let before = |sequence| (1..1 << 30).contains(&behind(end, sequence));
        // Sent before the batch that was taken first, though of an unknown producer: perhaps refused while that one was
        // on its way. To call it a repetition, as Kafka does, would pass for an acknowledgement of what is not there.
        let is_unknown =
            producer.began.is_some_and(|(epoch, began)| epoch == h.producer_epoch && before(began));
        if before(oldest) && !is_unknown {
            return Err(AppendError::DuplicateSequence(first));
        }
        Err(AppendError::OutOfOrderSequence { got: first, expected })
    }

    /// Remembers a batch that got `base`. `durable_end`: everything below it is on the volume. `number`: which transaction it
    /// begins, if it begins one and that is known.
    pub fn record(&mut self, h: &Header, base: Offset, now: i64, durable_end: Offset, number: Option<u64>) {
        if !h.has_producer() {
            return;
        }
        let p = self.by_id.entry(h.producer_id).or_insert_with(|| Producer {
            began: (h.base_sequence != 0).then_some((h.producer_epoch, h.base_sequence)),
            ..Producer::new(h.producer_id, now)
        });
        p.seen = now;
        if h.is_transactional() && p.standing.open.is_none() {
            let open = Some(Open { first: base, epoch: h.producer_epoch, number });
            p.set_standing(base, durable_end, Standing { open, ..p.standing });
            self.unstable.insert(base, None);
        }
        p.batches.push_back(Remembered {
            epoch: h.producer_epoch,
            first_sequence: h.base_sequence,
            last_sequence: h.last_sequence(),
            base,
            last: base.plus(h.last_offset_delta as i64),
            timestamp: h.max_timestamp,
        });
        let durable = p.batches.iter().take_while(|b| b.last < durable_end).count();
        if durable > WINDOW {
            p.batches.drain(..durable - WINDOW);
        }
    }

    /// What may be written to disk when the log is durable up to `end`.
    pub fn durable(&self, end: Offset) -> Vec<Producer> {
        let cut = |p: &Producer| {
            let mut p = p.clone();
            while p.batches.back().is_some_and(|b| b.last >= end) {
                p.batches.pop_back();
            }
            let extra = p.batches.len().saturating_sub(WINDOW);
            p.batches.drain(..extra);
            p.standing = p.standing_at(end);
            p.before.clear();
            (!p.batches.is_empty() || !p.standing.is_default()).then_some(p)
        };
        self.by_id.values().filter_map(cut).collect()
    }

    /// Forgets producers that were silent since `before` (wall ms), unless they have something past `durable_end` or a
    /// transaction open.
    pub fn expire(&mut self, before: i64, durable_end: Offset) {
        let busy = |p: &Producer| {
            p.standing.open.is_some()
                || p.batches.back().is_some_and(|b| b.last >= durable_end)
                || p.before.back().is_some_and(|(at, _)| *at >= durable_end)
        };
        self.by_id.retain(|_, p| p.seen >= before || busy(p));
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::testing::raw;
    use super::*;
    use proptest::prelude::*;

    fn head(epoch: i16, seq: i32, n: i32) -> Header {
        Header::parse(&raw(n, b"", 0, (7, epoch, seq))).unwrap()
    }

    fn feed(p: &mut Producers, epoch: i16, seq: i32, n: i32, at: i64) {
        let h = head(epoch, seq, n);
        assert_eq!(p.judge(&h), Ok(None));
        p.record(&h, Offset(at), 0, Offset(at), None);
    }

    #[test]
    fn a_retry_of_any_of_the_last_five_is_told_where_it_lies() {
        let mut p = Producers::default();
        // Five that are durable, one that is not yet, and before them one that is forgotten.
        for i in 0..7 {
            feed(&mut p, 0, i * 10, 10, i as i64 * 10);
        }
        for i in 1..7 {
            assert_eq!(p.judge(&head(0, i * 10, 10)).unwrap().unwrap().base, Offset(i as i64 * 10));
        }
        assert_eq!(p.judge(&head(0, 0, 10)), Err(AppendError::DuplicateSequence(0)));
        assert!(matches!(
            p.judge(&head(0, 80, 1)),
            Err(AppendError::OutOfOrderSequence { expected: 70, .. })
        ));
        assert!(matches!(p.judge(&head(0, 60, 5)), Err(AppendError::OutOfOrderSequence { .. })));
    }

    /// The first batch is refused, the second one, on its way already, is taken: the first was never here.
    #[test]
    fn what_was_sent_before_the_memory_began_is_no_repetition() {
        let mut p = Producers::default();
        feed(&mut p, 0, 3, 2, 0);
        for i in 1..9 {
            feed(&mut p, 0, 3 + 2 * i, 2, 2 * i as i64);
        }
        assert_eq!(
            p.judge(&head(0, 0, 3)),
            Err(AppendError::OutOfOrderSequence { got: 0, expected: 21 }),
            "never seen"
        );
        assert_eq!(p.judge(&head(0, 3, 2)), Err(AppendError::DuplicateSequence(3)), "seen, and forgotten");
    }

    /// A client that gives up and sends again may have more than five batches in the queue of a slow volume.
    #[test]
    fn a_retry_of_what_is_not_durable_waits_however_far_back_it_is() {
        let mut p = Producers::default();
        for i in 0..9 {
            p.record(&head(0, i, 1), Offset(i as i64), 0, Offset(0), None);
        }
        for i in 0..9 {
            assert_eq!(p.judge(&head(0, i, 1)).unwrap().unwrap().base, Offset(i as i64));
        }
    }

    #[test]
    fn case_29_sequences_wrap() {
        let mut p = Producers::default();
        feed(&mut p, 0, i32::MAX, 1, 0);
        feed(&mut p, 0, 0, 1, 1);
        let mut p = Producers::default();
        feed(&mut p, 0, i32::MAX - 1, 4, 0);
        assert_eq!(head(0, i32::MAX - 1, 4).last_sequence(), 1);
        feed(&mut p, 0, 2, 1, 4);
        assert!(p.judge(&head(0, i32::MAX - 1, 4)).unwrap().is_some(), "a retry across the wrap");
    }

    #[test]
    fn case_30_epochs() {
        let mut p = Producers::default();
        feed(&mut p, 5, 0, 1, 0);
        assert_eq!(p.judge(&head(4, 1, 1)), Err(AppendError::InvalidProducerEpoch { got: 4, current: 5 }));
        assert_eq!(p.judge(&head(6, 3, 1)), Err(AppendError::OutOfOrderSequence { got: 3, expected: 0 }));
        feed(&mut p, 6, 0, 1, 1);
    }

    #[test]
    fn an_unknown_producer_may_begin_anywhere() {
        assert_eq!(Producers::default().judge(&head(3, 99, 1)), Ok(None));
    }

    #[test]
    fn what_is_not_durable_is_neither_written_nor_does_it_push_durable_batches_out() {
        let mut p = Producers::default();
        for i in 0..5 {
            feed(&mut p, 0, i, 1, i as i64);
        }
        for i in 5..10 {
            let h = head(0, i, 1);
            p.record(&h, Offset(i as i64), 0, Offset(5), None);
        }
        let d = p.durable(Offset(5));
        assert_eq!(d[0].batches.iter().map(|b| b.base.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        let d = p.durable(Offset(8));
        assert_eq!(d[0].batches.iter().map(|b| b.base.0).collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
        p.expire(i64::MAX, Offset(5));
        assert_eq!(p.len(), 1, "a producer with batches in flight stays");
        p.expire(i64::MAX, Offset(10));
        assert!(p.is_empty());
    }

    proptest! {
        /// Whatever a producer sends, in whatever order, each sequence number is accepted at most once and in
        /// order.
        #[test]
        fn accepted_sequences_are_gapless(tries in prop::collection::vec((0i32..12, 1i32..3), 1..60)) {
            let mut p = Producers::default();
            let mut next: Option<i32> = None;
            let mut at = 0;
            for (seq, n) in tries {
                let h = head(0, seq, n);
                if let Ok(None) = p.judge(&h) {
                    prop_assert!(next.is_none_or(|x| x == seq));
                    p.record(&h, Offset(at), 0, Offset(at), None);
                    next = Some(seq + n);
                    at += n as i64;
                }
            }
        }
    }
}
