//! Where the control plane's files lie, and which names they have.
//!
//! ```text
//! __cluster/format.json                              what the volume is; written once
//! __cluster/brokers/{id}-{lease:08x}.heartbeat       by the process that holds that lease of that id
//! __cluster/brokers/{id}-{lease:08x}.dead            by whoever proved that lease dead; empty
//! __cluster/brokers/{id}-{lease:08x}-{n:08x}.request by the process that holds that lease: what it asks of the controller
//! __cluster/brokers/{random:016x}.probe              by a start, for a moment, to defeat a stale name cache; empty
//! __cluster/controller/{epoch:08x}.claim             by the winner of that controller epoch
//! __cluster/metadata/{epoch:08x}-metadata.json       by the controller of that epoch
//! __cluster/metadata/{epoch:08x}-{incarnation}-{n:016x}.tmp   on its way to the above
//! ```
//!
//! `__cluster` may lie on a volume of its own (`cluster.dir`). Then the data volume's root has
//!
//! ```text
//! __cluster.json                                     which cluster the data belongs to; written once
//! ```
//!
//! Every name says who may write it, so that what a dead process's host writes back late lands in
//! files that nobody trusts any more. That is why a heartbeat has the lease in its name: a write of an
//! ended lease can neither hide the present one nor pass for it, and a file whose write or sync failed
//! is never written again, because the next lease has a file of its own.
//!
//! All heartbeats lie in one directory: one exclusive create there defeats a stale name cache for all
//! brokers at once, and so finds new brokers and new leases alike.

use crate::types::{BrokerId, Epoch};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) const ROOT: &str = "__cluster";
/// On a data volume whose control plane's files lie elsewhere: which cluster it belongs to.
pub(crate) const MARKER: &str = "__cluster.json";
pub(crate) const FORMAT: &str = "__cluster/format.json";
pub(crate) const BROKERS: &str = "__cluster/brokers";
pub(crate) const CONTROLLER: &str = "__cluster/controller";
pub(crate) const METADATA: &str = "__cluster/metadata";

/// One lease of one broker id. A higher number supersedes a lower one: it is taken only once every
/// lower one is proven dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeaseKey {
    pub broker: BrokerId,
    pub number: u32,
}

impl LeaseKey {
    pub fn heartbeat(self) -> String {
        format!("{BROKERS}/{}-{:08x}.heartbeat", self.broker, self.number)
    }

    /// As claims name it ([`crate::storage::Fence::holder`]).
    pub fn holder(self) -> String {
        format!("{}-{:08x}", self.broker, self.number)
    }

    pub fn death_record(self) -> String {
        format!("{BROKERS}/{}-{:08x}.dead", self.broker, self.number)
    }

    /// The file of the `n`th request that is made of the controller under this lease.
    pub fn request(self, n: u32) -> String {
        format!("{BROKERS}/{}-{:08x}-{n:08x}.request", self.broker, self.number)
    }

    pub fn parse_request(name: &str) -> Option<(LeaseKey, u32)> {
        let (key, n) = name.strip_suffix(".request")?.rsplit_once('-')?;
        Some((Self::parse(key)?, hex8(n)?))
    }

    pub fn parse_heartbeat(name: &str) -> Option<LeaseKey> {
        Self::parse(name.strip_suffix(".heartbeat")?)
    }

    pub fn parse_death_record(name: &str) -> Option<LeaseKey> {
        Self::parse(name.strip_suffix(".dead")?)
    }

    /// As a claim names its holder ([`crate::storage::Fence::holder`]): `1-0000000a`.
    pub fn parse(stem: &str) -> Option<LeaseKey> {
        let (broker, number) = stem.rsplit_once('-')?;
        let key = LeaseKey { broker: BrokerId(broker.parse().ok()?), number: hex8(number)? };
        (key.broker.to_string() == broker).then_some(key)
    }
}

impl Serialize for LeaseKey {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{}-{:08x}", self.broker, self.number))
    }
}

impl<'de> Deserialize<'de> for LeaseKey {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        LeaseKey::parse(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is no lease")))
    }
}

impl std::fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "lease {:x} of broker {}", self.number, self.broker)
    }
}

/// An empty file whose creation in `dir` defeats a stale name cache. `random` makes the name nobody else's.
pub(crate) fn probe(dir: &str, random: u64) -> String {
    format!("{dir}/{random:016x}.probe")
}

pub(crate) fn is_probe(name: &str) -> bool {
    name.ends_with(".probe")
}

/// The name under which a broker takes the host-local lock of an id.
pub(crate) fn host_lock(broker: BrokerId) -> String {
    format!("{broker}.lock")
}

pub(crate) fn claim(epoch: Epoch) -> String {
    format!("{CONTROLLER}/{epoch}.claim")
}

pub(crate) fn parse_claim(name: &str) -> Option<Epoch> {
    hex8(name.strip_suffix(".claim")?).map(Epoch)
}

pub(crate) fn metadata(epoch: Epoch) -> String {
    format!("{METADATA}/{epoch}-metadata.json")
}

pub(crate) fn parse_metadata(name: &str) -> Option<Epoch> {
    hex8(name.strip_suffix("-metadata.json")?).map(Epoch)
}

pub(crate) fn metadata_tmp(epoch: Epoch, incarnation: uuid::Uuid, n: u64) -> String {
    format!("{METADATA}/{epoch}-{}-{n:016x}.tmp", incarnation.simple())
}

/// The epoch of the controller that wrote a temporary file.
pub(crate) fn parse_metadata_tmp(name: &str) -> Option<Epoch> {
    hex8(name.strip_suffix(".tmp")?.split('-').next()?).map(Epoch)
}

/// Exactly eight lower-case hex digits: `u32::from_str_radix` alone takes `+5` too.
fn hex8(s: &str) -> Option<u32> {
    let strict = s.len() == 8 && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    strict.then(|| u32::from_str_radix(s, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_strange_ones_are_not() {
        let key = LeaseKey { broker: BrokerId(12), number: 0xab };
        let name = |p: String| p.rsplit('/').next().map(str::to_owned).unwrap_or_default();
        assert_eq!(LeaseKey::parse_heartbeat(&name(key.heartbeat())), Some(key));
        assert_eq!(LeaseKey::parse_death_record(&name(key.death_record())), Some(key));
        assert_eq!(parse_claim(&name(claim(Epoch(7)))), Some(Epoch(7)));
        assert_eq!(parse_metadata(&name(metadata(Epoch(7)))), Some(Epoch(7)));
        let tmp = name(metadata_tmp(Epoch(7), uuid::Uuid::nil(), 3));
        assert_eq!(parse_metadata_tmp(&tmp), Some(Epoch(7)));
        for odd in ["1-+0000001.heartbeat", "1-1.heartbeat", "01-00000001.heartbeat", "x-00000001.heartbeat"]
        {
            assert_eq!(LeaseKey::parse_heartbeat(odd), None, "{odd}");
        }
        assert_eq!(parse_claim(".nfs0000001.claim"), None);
        assert_eq!(parse_metadata("00000001-metadata.json.tmp"), None);
    }
}
