//! Whether the seat of the controller is vacant.
//!
//! It is when nobody ever claimed it, or when the lease of whoever claimed the highest epoch is proven to be over. A claim
//! without readable content is of somebody who has yet to look for higher claims, or who died before: it lapses
//! after a lease by this broker's own clock.

use super::election::Candidate;
use super::files;
use super::layout::{self, LeaseKey};
use super::lease::Lease;
use super::roster::View;
use crate::rt::Env;
use crate::types::{BrokerId, Epoch};
use crate::volume::VolumeError;
use std::time::Duration;

pub(super) struct Seat {
    pub env: Env,
    pub me: BrokerId,
    /// The highest claim that could not be read, and since when.
    pub unreadable: Option<(Epoch, Duration)>,
}

impl Seat {
    /// Asks the volume only if no broker says that it is controller.
    pub async fn is_vacant(&mut self, roster: &View, lease: &Lease) -> Result<bool, VolumeError> {
        if roster.has_controller(Epoch(1)) {
            return Ok(false);
        }
        let limit = lease.terms().lease;
        let names = files::fresh_names(&self.env, layout::CONTROLLER);
        let names = files::within(limit, "list", layout::CONTROLLER, names).await?;
        let Some(highest) = names.iter().filter_map(|n| layout::parse_claim(n)).max() else {
            return Ok(true);
        };
        let path = layout::claim(highest);
        let read = files::within(limit, "read", &path, files::read(&*self.env.volume, &path)).await;
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(e) if e.is_not_found() => return Ok(false),
            Err(e) => return Err(e),
        };
        let Ok(by) = serde_json::from_slice::<Candidate>(&bytes) else {
            return Ok(self.has_lapsed(highest, limit));
        };
        let Ok(number) = u32::try_from(by.lease) else { return Ok(self.has_lapsed(highest, limit)) };
        // Our own: of an earlier lease, or one that we gave up under this one.
        Ok(by.broker == self.me || roster.is_over(LeaseKey { broker: by.broker, number }))
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
