//! Offsets that transactions have committed to a group, and that nobody sees before the transaction has.
//!
//! As in Kafka, what a transaction commits counts from when it was written, not from when the transaction ended: it
//! does not undo a commit, or a deletion, that came in between.

use super::durable::Place;
use super::record::{Committed, Pending};
use std::collections::BTreeMap;

/// One transaction's offsets in one group.
#[derive(Clone, Debug)]
pub struct OpenOffsets {
    pub number: u64,
    /// That the producer wrote under.
    pub epoch: i16,
    offsets: BTreeMap<Place, PendingOffset>,
}

#[derive(Clone, Debug)]
struct PendingOffset {
    offset: Committed,
    overtaken: bool,
    /// Rises with every offset that the slot's log holds.
    order: u64,
    size: usize,
}

/// All pending offsets of a group, by producer id.
#[derive(Clone, Debug, Default)]
pub struct PendingOffsets {
    open: BTreeMap<i64, OpenOffsets>,
}

impl PendingOffsets {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub fn open(&self) -> &BTreeMap<i64, OpenOffsets> {
        &self.open
    }

    /// Whether a transaction has yet to decide on the offset of `place`.
    pub fn covers(&self, place: &Place) -> bool {
        self.open.values().any(|open| open.offsets.contains_key(place))
    }

    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.open.values().flat_map(|open| open.offsets.keys())
    }

    pub fn size(&self) -> usize {
        self.open.values().map(OpenOffsets::size).sum()
    }

    /// Takes in what stands at `order` in the log. Gives back the bytes of what it replaces; `None`: it is of a
    /// transaction that is over.
    pub fn put(
        &mut self,
        producer_id: i64,
        place: Place,
        order: u64,
        pending: &Pending,
        size: usize,
    ) -> Option<usize> {
        let (number, epoch) = (pending.number, pending.epoch);
        let fresh = || OpenOffsets { number, epoch, offsets: BTreeMap::new() };
        let open = self.open.entry(producer_id).or_insert_with(fresh);
        if open.number > number {
            return None;
        }
        let mut replaced = 0;
        // A transaction starts when the one before has ended everywhere.
        if open.number < number {
            replaced = open.size();
            *open = fresh();
        }
        let Pending { overtaken, offset, .. } = pending.clone();
        let old = open.offsets.insert(place, PendingOffset { offset, overtaken, order, size });
        Some(replaced + old.map_or(0, |p| p.size))
    }

    /// Something came after what is pending for `place` up to `order`.
    pub fn overtake(&mut self, place: &Place, order: u64) {
        for pending in self.open.values_mut().filter_map(|open| open.offsets.get_mut(place)) {
            pending.overtaken |= pending.order < order;
        }
    }

    /// Ends transaction `number`, and gives back what was pending.
    pub fn end(&mut self, producer_id: i64, number: u64) -> Option<OpenOffsets> {
        self.open.get(&producer_id).filter(|open| open.number == number)?;
        self.open.remove(&producer_id)
    }

    /// All of it, in the order of writing.
    pub fn all(&self) -> Vec<(i64, Place, Pending)> {
        let of_one = |(id, open): (&i64, &OpenOffsets)| {
            let (id, number, epoch) = (*id, open.number, open.epoch);
            let pending = move |(place, p): (&Place, &PendingOffset)| {
                let overtaken = p.overtaken;
                (p.order, (id, *place, Pending { number, epoch, overtaken, offset: p.offset.clone() }))
            };
            open.offsets.iter().map(pending).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.open.iter().flat_map(of_one).collect();
        all.sort_by_key(|(order, _)| *order);
        all.into_iter().map(|(_, pending)| pending).collect()
    }
}

impl OpenOffsets {
    pub fn size(&self) -> usize {
        self.offsets.values().map(|p| p.size).sum()
    }

    /// What counts if it is committed: places with offset, order and bytes.
    pub fn counting(self) -> impl Iterator<Item = (Place, Committed, u64, usize)> {
        let counts = self.offsets.into_iter().filter(|(_, p)| !p.overtaken);
        counts.map(|(place, p)| (place, p.offset, p.order, p.size))
    }
}
