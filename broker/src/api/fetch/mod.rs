//! Fetch (versions 4–17), with long poll.
//!
//! No fetch sessions (KIP-227): the session id is always 0, "not supported", and a request that claims a
//! session gets FETCH_SESSION_ID_NOT_FOUND, upon which clients fetch in full.
//!
//! From version 13 on topics are named by id (KIP-516): nothing is read of a later topic of the same name, and an id of
//! nothing is answered UNKNOWN_TOPIC_ID, in the rows of its partitions only. INCONSISTENT_TOPIC_ID and
//! FETCH_SESSION_TOPIC_ID_ERROR have no occasion: partitions are found by their topic's id, and there are no sessions. From
//! version 16 on who came to the wrong broker, or believes in an older epoch, is told of the leader (KIP-951). A request that
//! claims to be a follower's (in version 15 by a tagged field, KIP-903) is answered as any other: there are none.
//!
//! The long poll registers with the partitions first and reads then, so that nothing arrives unseen in between;
//! until enough has arrived it waits for a notification or the end of `max_wait_ms`, and costs nothing.
//! Every answer comes from a read made at its end, hence under a live lease.
//!
//! A partition that still opens is waited for, but not long (see [`OPENING_PATIENCE`]): then its row says
//! NOT_LEADER_OR_FOLLOWER, the others have their data, and the client comes back.

mod allotment;
mod arrivals;
pub(super) mod encode;
mod held;
mod hints;
mod pass;

pub use held::Held;

use super::RequestContext;
use arrivals::Arrivals;
use kafka_protocol::messages::{FetchRequest, FetchResponse};
use kafka_protocol::ResponseError;
use pass::Pass;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How long a fetch waits for partitions that are opening.
const OPENING_PATIENCE: Duration = Duration::from_secs(2);

/// Versions below this may not be given zstd (KIP-110).
const FIRST_WITH_ZSTD: i16 = 10;

pub async fn handle(cx: &RequestContext, req: FetchRequest) -> FetchResponse {
    if !is_sessionless(&req) {
        return FetchResponse::default().with_error_code(ResponseError::FetchSessionIdNotFound.code());
    }
    let max_bytes = max_bytes(cx, &req);
    let min_bytes = usize::try_from(req.min_bytes).unwrap_or(0).min(max_bytes);
    let max_wait = Duration::from_millis(u64::try_from(req.max_wait_ms).unwrap_or(0));
    let mut timer = std::pin::pin!(tokio::time::sleep(max_wait));
    let closing = cx.broker.closing.clone();
    let mut closing = std::pin::pin!(closing.heard());
    let notify = Arc::new(Notify::new());
    let mut is_last = max_wait.is_zero();
    loop {
        let rows = pass::find_all(cx, &req);
        let mut arrivals = Arrivals::watch(&rows, &notify, pass::is_committed(&req));
        let room = cx.broker.fetched.room(max_bytes);
        let pass = Pass::read(cx, &req, rows, room.bytes()).await;
        drop(room);
        if is_last || pass.is_urgent || pass.bytes >= min_bytes {
            return hints::added(cx, pass.response);
        }
        let missing = min_bytes - pass.bytes;
        drop(pass);
        while !is_last {
            tokio::select! {
                biased;
                () = &mut closing => is_last = true,
                () = notify.notified() => if arrivals.warrant_a_look(missing) { break },
                () = &mut timer => is_last = true,
            }
        }
    }
}

/// KIP-227: session id 0 with epoch 0 ("open one, if you like") or −1 ("none").
fn is_sessionless(req: &FetchRequest) -> bool {
    req.session_id == 0 && matches!(req.session_epoch, 0 | -1)
}

/// Bytes of records that the response to `req` may have; a single larger batch excepted.
pub(super) fn max_bytes(cx: &RequestContext, req: &FetchRequest) -> usize {
    usize::try_from(req.max_bytes).unwrap_or(0).min(cx.broker.config.fetch_max_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_36_a_claimed_session_is_not_found() {
        let claim = |id, epoch| FetchRequest::default().with_session_id(id).with_session_epoch(epoch);
        assert!(is_sessionless(&claim(0, 0)));
        assert!(is_sessionless(&claim(0, -1)));
        assert!(!is_sessionless(&claim(7, 1)));
        assert!(!is_sessionless(&claim(7, 0)));
        assert!(!is_sessionless(&claim(0, 1)));
    }
}
