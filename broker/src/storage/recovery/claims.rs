//! Who may open: claims, and waiting for those who claimed before.
//!
//! A claim is won by the exclusive creation of its name. Then its content, who claims, is made durable, and only
//! then does the claimant look at the directory. So a claim without content is of somebody who has yet to look,
//! and will find ours: he gives up. One with content may be of somebody who leads at this moment, or is about to:
//! he must have said that he stopped, or be proven dead, before anything is read that he may still change.
//!
//! Of one holder the highest claim speaks for all: he stops under his earlier epochs before he claims the next.

use super::{list, Listing, OpenArgs, OpenError};
use crate::reached;
use crate::storage::docs::{self, Claim, DocError, FORMAT};
use crate::storage::names::{self, FileName};
use crate::types::Epoch;
use crate::volume::{Class, Volume, VolumeError};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Between two looks at those who must go first, and for how long the first pause is kept: whoever hands a partition over
/// has done so by then, and producers wait.
const POLL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));
const BRISK: Duration = Duration::from_secs(2);

/// After how many looks the directory is listed again, each time: it costs a file.
const RELIST: u32 = 8;

/// Refuses to claim above a broker that the cluster assigned later, for as long as it would have to go first anyway: clients
/// would see the leader epoch of this claim, and then that of the assignment, which is lower.
pub(super) async fn refuse_the_superseded(a: &OpenArgs, listing: &Listing) -> Result<(), OpenError> {
    let later = a.assigned.map(Epoch::of_next_assignment);
    let highest = listing.highest(|f| matches!(f, FileName::Claim(_)).then_some(f.epoch()));
    let (Some(later), Some(epoch)) = (later, highest) else { return Ok(()) };
    if epoch < later {
        return Ok(());
    }
    let mut waited = Duration::ZERO;
    let claim = loop {
        match read(a, epoch).await? {
            // Its maker is about to say who he is, or died before.
            None if waited < BRISK => {
                tokio::time::sleep(POLL.0).await;
                a.still_wanted()?;
                a.progress.fetch_add(1, Relaxed);
                waited += POLL.0;
            }
            claim => break claim,
        }
    };
    match claim {
        Some(c) if c.holder == a.holder || c.relinquished || a.fence.is_over(&c.holder) => Ok(()),
        None => Ok(()),
        Some(_) => {
            reached!("assigned-later");
            Err(OpenError::Superseded { dir: a.spec.dir.clone(), epoch })
        }
    }
}

pub(super) async fn claim(a: &OpenArgs, epoch: Epoch) -> Result<(), OpenError> {
    let path = format!("{}/{}", a.spec.dir, names::claim(epoch));
    let file = match a.volume.create_new(&path, Class::Data).await {
        Err(e) if e.is_already_exists() => return Err(OpenError::Outbid { dir: a.spec.dir.clone(), epoch }),
        r => r?,
    };
    (a.on_claim)(epoch);
    // The name is not made durable: it is what claims, the manifest that follows names the epoch durably, and a claim
    // that a power cut takes back was never served under.
    let doc = Claim { format: FORMAT, epoch, holder: a.holder.clone(), relinquished: false };
    file.write_sync(0, vec![doc.encode()]).await?;
    Ok(())
}

/// Says that nothing is done under `epoch`, or an earlier one of this holder, any more; where the claim is gone, deleted
/// with its topic or by a successor that knows, nobody has to be told.
pub(in crate::storage) async fn relinquish(
    v: &dyn Volume,
    dir: &str,
    epoch: Epoch,
    holder: String,
) -> Result<(), VolumeError> {
    let file = match v.open_write(&format!("{dir}/{}", names::claim(epoch)), Class::Data).await {
        // One name alone proves nothing: a successor would wait for as long as the lease stands.
        Err(e) if e.is_not_found() && !is_listed(v, dir, epoch).await? => return Ok(()),
        r => r?,
    };
    let doc = Claim { format: FORMAT, epoch, holder, relinquished: true };
    file.write_sync(0, vec![doc.encode()]).await
}

async fn is_listed(v: &dyn Volume, dir: &str, claim: Epoch) -> Result<bool, VolumeError> {
    match list(v, dir).await {
        Ok(listing) => Ok(listing.files().any(|f| f == FileName::Claim(claim))),
        Err(e) if e.is_not_found() => Ok(false),
        Err(e) => Err(e),
    }
}

/// What lies in the directory, once nobody who claimed before `epoch` can change it any more.
pub(super) async fn await_earlier(a: &OpenArgs, epoch: Epoch) -> Result<Listing, OpenError> {
    // Our own create defeated the cache of names, unless somebody on this host has listed the directory since: then
    // `still_highest` finds out.
    let listing = highest_is(a, epoch, list(&*a.volume, &a.spec.dir).await?)?;
    let mut others = others(a, &listing, epoch).await?;
    if others.is_empty() {
        return Ok(listing);
    }
    let (mut pause, mut waited) = (POLL.0, Duration::ZERO);
    let mut looks = 0u32;
    loop {
        let disowned = (a.disowned)();
        others.retain(|c| !c.relinquished && !is_disowned(&disowned, c) && !a.fence.is_over(&c.holder));
        if others.is_empty() {
            break;
        }
        reached!("waited-for-earlier-claimant");
        tokio::time::sleep(pause).await;
        a.still_wanted()?;
        a.progress.fetch_add(1, Relaxed);
        waited += pause;
        pause = if waited < BRISK { POLL.0 } else { POLL.1 };
        looks += 1;
        // Whoever we wait for may have claimed again meanwhile, and speak of that claim only.
        if looks.is_multiple_of(RELIST) {
            let listing = highest_is(a, epoch, fresh_list(a, epoch).await?)?;
            others = self::others(a, &listing, epoch).await?;
            continue;
        }
        for c in &mut others {
            match read(a, c.epoch).await {
                Ok(Some(now)) => *c = now,
                // Says nothing new; if somebody deleted it, he claimed above us.
                Ok(None) => {}
                Err(DocError::Volume(e)) if e.is_not_found() => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    // The last of them may have written until a moment ago.
    a.still_wanted()?;
    highest_is(a, epoch, fresh_list(a, epoch).await?)
}

/// The last claim of each other holder that may matter: the present manifest's, and later ones. Who wrote that manifest
/// had waited for everybody before.
async fn others(a: &OpenArgs, listing: &Listing, epoch: Epoch) -> Result<Vec<Claim>, OpenError> {
    let from = listing.highest(|f| matches!(f, FileName::Manifest(_)).then_some(f.epoch()));
    let claims = listing.files().filter_map(|f| if let FileName::Claim(e) = f { Some(e) } else { None });
    let mut claims: Vec<Epoch> = claims.filter(|e| *e < epoch && Some(*e) >= from).collect();
    claims.sort_unstable_by(|a, b| b.cmp(a));
    let mut seen = BTreeSet::from([a.holder.clone()]);
    let mut others = Vec::new();
    for e in claims {
        if let Some(claim) = read(a, e).await? {
            if seen.insert(claim.holder.clone()) {
                others.push(claim);
            }
        }
    }
    Ok(others)
}

/// `None`: it has no content. One that is listed and not found is an error: a host may remember for a while that a name
/// was not there, and whoever claimed under it may lead.
async fn read(a: &OpenArgs, epoch: Epoch) -> Result<Option<Claim>, DocError> {
    match docs::read::<Claim>(&*a.volume, &format!("{}/{}", a.spec.dir, names::claim(epoch))).await {
        Ok(claim) => Ok(Some(claim)),
        Err(DocError::Damaged { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether whoever made the claim told the cluster, and not the directory, that he gave the partition up.
fn is_disowned(disowned: &[(String, Epoch)], claim: &Claim) -> bool {
    disowned.iter().any(|(holder, below)| *holder == claim.holder && claim.epoch < *below)
}

/// Whoever claimed above us and found our claim without content does not wait for us. Asked once more before the epoch
/// comes to exist, when a name made since then has defeated whatever cached listing hid him.
pub(super) async fn still_highest(a: &OpenArgs, epoch: Epoch) -> Result<(), OpenError> {
    highest_is(a, epoch, list(&*a.volume, &a.spec.dir).await?).map(|_| ())
}

fn highest_is(a: &OpenArgs, epoch: Epoch, listing: Listing) -> Result<Listing, OpenError> {
    let highest = listing.highest(|f| matches!(f, FileName::Claim(_)).then_some(f.epoch()));
    if highest.is_some_and(|h| h > epoch) {
        reached!("claim-outbid");
        return Err(OpenError::Outbid { dir: a.spec.dir.clone(), epoch });
    }
    Ok(listing)
}

/// The listing as the server has it.
async fn fresh_list(a: &OpenArgs, epoch: Epoch) -> Result<Listing, OpenError> {
    let v = &*a.volume;
    let probe = format!("{}/{epoch}-listing.{:x}.tmp", a.spec.dir, a.nonce);
    drop(v.create_new(&probe, Class::Data).await?);
    let listing = list(v, &a.spec.dir).await;
    // What stays is garbage for the next opening to find.
    drop(v.unlink(&probe).await);
    Ok(listing?)
}
