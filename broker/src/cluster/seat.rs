//! Whether the seat of the controller is vacant.
//!
//! It is when nobody ever claimed it, or when whoever claimed the highest epoch is proven dead or says that he resigned: a
//! write that he gave up in doubt may land later, in a file of that epoch, which nobody reads any more. A claim
//! without readable content is of somebody who has yet to look for higher claims, or who died before: it lapses
//! after a lease by this broker's own clock, and sooner if all who may be there say that it is not theirs, since only
//! who holds a lease claims. So whoever finds such a claim, and makes none himself, says so with his next heartbeat.

use super::election::Candidate;
use super::files;
use super::layout::{self, LeaseKey};
use super::lease::Lease;
use super::membership::Identity;
use super::roster::View;
use crate::rt::Env;
use crate::types::Epoch;
use crate::volume::VolumeError;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Seat {
    pub env: Env,
    pub me: Arc<Identity>,
    /// The highest claim that could not be read, and since when.
    pub unreadable: Option<(Epoch, Duration)>,
}

/// The highest claim.
enum Highest {
    None,
    /// It is listed, and not there: a cache, or a race. Says nothing.
    Gone,
    Unreadable(Epoch),
    By(LeaseKey, Epoch),
}

impl Seat {
    /// The highest epoch that was claimed, if whoever claimed it is no controller any more; 0 if nobody ever did.
    ///
    /// Asks the volume only if no broker says that it is controller.
    pub async fn vacant_after(&mut self, roster: &View, lease: &Lease) -> Result<Option<Epoch>, VolumeError> {
        if roster.controller().is_some() {
            return Ok(None);
        }
        let limit = lease.terms().lease;
        let (highest, is_vacant) = match self.highest(limit).await? {
            Highest::None => (Epoch(0), true),
            Highest::Gone => return Ok(None),
            // Our own: of an earlier lease, or one that we gave up under this one.
            Highest::By(by, epoch) => {
                (epoch, by.broker == self.me.broker || roster.is_over(by) || roster.resigned(by) >= epoch)
            }
            Highest::Unreadable(epoch) => {
                // No bid of ours is under way here, and what an earlier one left was given up.
                self.me.resigned.fetch_max(epoch.0, SeqCst);
                (epoch, roster.is_nobodys(epoch, self.me.broker) || self.has_lapsed(epoch, limit))
            }
        };
        Ok(is_vacant.then_some(highest))
    }

    /// Looks, so that a claim that nobody can read has been seen for some time when it matters.
    pub async fn look(&mut self, limit: Duration) {
        if let Ok(Highest::Unreadable(epoch)) = self.highest(limit).await {
            self.has_lapsed(epoch, limit);
        }
    }

    async fn highest(&self, limit: Duration) -> Result<Highest, VolumeError> {
        let names = files::fresh_names(&self.env, layout::CONTROLLER);
        let names = files::within(limit, "list", layout::CONTROLLER, names).await?;
        let Some(highest) = names.iter().filter_map(|n| layout::parse_claim(n)).max() else {
            return Ok(Highest::None);
        };
        let path = layout::claim(highest);
        let read = files::within(limit, "read", &path, files::read(&*self.env.volume, &path)).await;
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(e) if e.is_not_found() => return Ok(Highest::Gone),
            Err(e) => return Err(e),
        };
        let by = serde_json::from_slice::<Candidate>(&bytes).ok();
        let by =
            by.and_then(|by| Some(LeaseKey { broker: by.broker, number: u32::try_from(by.lease).ok()? }));
        Ok(by.map_or(Highest::Unreadable(highest), |by| Highest::By(by, highest)))
    }

    fn has_lapsed(&mut self, claim: Epoch, after: Duration) -> bool {
        let now = self.env.clock.boot();
        match self.unreadable {
            Some((same, since)) if same == claim => now.saturating_sub(since) > after,
            _ => {
                self.unreadable = Some((claim, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::election::{ClaimFiles, Election};
    use super::super::lease::LeaseTerms;
    use super::super::roster::testing;
    use super::*;
    use crate::rt::HostLock;
    use crate::rt::SeededEntropy;
    use crate::types::BrokerId;
    use crate::volume::{MemVolume, Volume};
    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::sync::Arc;

    fn me() -> Arc<Identity> {
        Arc::new(Identity {
            broker: BrokerId(2),
            incarnation: uuid::Uuid::nil(),
            address: String::new(),
            lock: HostLock::new(String::new(), ()),
            terms: LeaseTerms::new(Duration::from_secs(10)),
            office: Mutex::default(),
            resigned: AtomicU32::new(0),
            leaving: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            shown: Mutex::default(),
            requests: Mutex::default(),
        })
    }

    #[tokio::test]
    async fn a_claim_without_content_holds_nobody_up_who_is_alone() {
        let volume = Arc::new(MemVolume::new());
        for dir in [layout::ROOT, layout::CONTROLLER] {
            volume.mkdir(dir, crate::volume::Class::Control).await.expect("made");
        }
        // A late create of a process that died.
        volume.create_new(&layout::claim(Epoch(3)), crate::volume::Class::Control).await.expect("made");
        let w = super::super::tests::World::new(2);
        let (host, entropy) = (Arc::new(w.machine("a")), Arc::new(SeededEntropy::new(2)));
        let env = Env { volume, clock: w.clock.clone(), entropy, host };
        let lease = Lease::new(env.clock.clone(), BrokerId(2), LeaseTerms::new(Duration::from_secs(10)));
        let (mine, other) = [2, 1].map(|n| LeaseKey { broker: BrokerId(n), number: 1 }).into();
        for (view, vacant) in [
            (testing::view(&[mine], &[], &[other]), Some(Epoch(3))),
            (testing::view(&[mine, other], &[], &[]), None),
            (testing::view(&[mine], &[other], &[]), None),
        ] {
            let mut seat = Seat { env: env.clone(), me: me(), unreadable: None };
            assert_eq!(seat.vacant_after(&view, &lease).await.expect("read"), vacant);
            assert_eq!(seat.me.resigned.load(SeqCst), 3, "and it is not ours, if somebody else asks");
        }
        // The other, who lives, says so as well.
        for (said, vacant) in [(2, None), (3, Some(Epoch(3)))] {
            let mut seat = Seat { env: env.clone(), me: me(), unreadable: None };
            let view = testing::resigned(other, Epoch(said));
            assert_eq!(seat.vacant_after(&view, &lease).await.expect("read"), vacant, "{said}");
        }
    }

    #[tokio::test]
    async fn the_claim_of_who_lives_holds_until_he_says_that_he_resigned() {
        let volume = Arc::new(MemVolume::new());
        for dir in [layout::ROOT, layout::CONTROLLER] {
            volume.mkdir(dir, crate::volume::Class::Control).await.expect("made");
        }
        // The story's clock and locks.
        let w = super::super::tests::World::new(1);
        let host = Arc::new(w.machine("a"));
        let entropy = Arc::new(SeededEntropy::new(1));
        let env = Env { volume, clock: w.clock.clone(), entropy, host };
        let by = Candidate { broker: BrokerId(1), incarnation: uuid::Uuid::nil(), lease: 3 };
        let won = ClaimFiles { env: env.clone() }.campaign(by, Epoch(4)).await.expect("won");
        let lease = Lease::new(env.clock.clone(), BrokerId(2), LeaseTerms::new(Duration::from_secs(10)));
        let mut seat = Seat { env, me: me(), unreadable: None };
        let key = LeaseKey { broker: BrokerId(1), number: 3 };
        for (resigned, vacant) in [(Epoch(0), None), (Epoch(4), None), (won, Some(won))] {
            let view = testing::resigned(key, resigned);
            let found = seat.vacant_after(&view, &lease).await.expect("read");
            assert_eq!(found, vacant, "resigned from {resigned}");
        }
    }
}
