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
    /// The highest epoch that was claimed, if whoever claimed it is no controller any more; 0 if nobody ever did.
    ///
    /// Asks the volume only if no broker says that it is controller.
    pub async fn vacant_after(&mut self, roster: &View, lease: &Lease) -> Result<Option<Epoch>, VolumeError> {
        if roster.controller().is_some() {
            return Ok(None);
        }
        let limit = lease.terms().lease;
        let names = files::fresh_names(&self.env, layout::CONTROLLER);
        let names = files::within(limit, "list", layout::CONTROLLER, names).await?;
        let Some(highest) = names.iter().filter_map(|n| layout::parse_claim(n)).max() else {
            return Ok(Some(Epoch(0)));
        };
        let path = layout::claim(highest);
        let read = files::within(limit, "read", &path, files::read(&*self.env.volume, &path)).await;
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(e) if e.is_not_found() => return Ok(None),
            Err(e) => return Err(e),
        };
        let by = serde_json::from_slice::<Candidate>(&bytes).ok();
        let by =
            by.and_then(|by| Some(LeaseKey { broker: by.broker, number: u32::try_from(by.lease).ok()? }));
        let is_vacant = match by {
            // Our own: of an earlier lease, or one that we gave up under this one.
            Some(by) => by.broker == self.me || roster.is_over(by),
            None => self.has_lapsed(highest, limit),
        };
        Ok(is_vacant.then_some(highest))
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
