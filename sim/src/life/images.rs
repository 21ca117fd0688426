//! Crash images: at chosen moments, everything that a loss of all power could leave, each recovered from.
//!
//! The images are taken while the life goes on and recovered when it is over, one by one, on a host of their own.
//! Each must hold what was acknowledged and what was shown before its moment: the checkers judge the history up to
//! there, followed by what can be read from the recovered image.

use super::ending::files;
use crate::check::{self, Evidence, Terms, Violation};
use crate::history::{now, Event, History, Stamped};
use crate::scenario::draw::stream;
use crate::volume::{Image, Model};
use crate::workload::{self, Ctx};
use crate::world::{Bench, World};
use parking_lot::Mutex;
use rand::Rng;
use std::sync::Arc;
use std::time::Duration;

/// What could be left at one moment.
struct Moment {
    at: Duration,
    /// Events that had happened.
    events: usize,
    images: Vec<Image>,
    total: u128,
}

/// The images of a life.
#[derive(Clone, Default)]
pub struct Images(Arc<Mutex<Vec<Moment>>>);

/// What came of recovering from them.
#[derive(Default)]
pub struct Recovered {
    pub images: u64,
    pub violations: Vec<Violation>,
}

impl Images {
    /// Takes images at moments that the seed draws; in the middle of writes as often as not.
    pub fn take(&self, world: &World, seed: u64) {
        let life = &world.plan().life;
        for n in 0..life.crash_points {
            let at = stream(seed, &format!("crash point {n}")).gen_range(0.0..life.seconds);
            let (images, world, limit) = (self.clone(), world.clone(), life.crash_images.max(1) as usize);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs_f64(at)).await;
                let left = world.model().crash_images(limit);
                let events = world.history().len();
                world.history().record(Event::Note(format!(
                    "{} different images could be left by a crash; {} are kept",
                    left.total,
                    left.images.len()
                )));
                let moment = Moment { at: now(), events, images: left.images, total: left.total };
                images.0.lock().push(moment);
            });
        }
    }

    /// Recovers from all of them. The life's own brokers have stopped.
    pub async fn recover(&self, world: &World, ctx: &Ctx, terms: &Terms, history: &[Stamped]) -> Recovered {
        let moments = std::mem::take(&mut *self.0.lock());
        let mut done = Recovered::default();
        if moments.is_empty() {
            return done;
        }
        let bench = Bench::new(world);
        for moment in moments {
            tracing::info!(total = %moment.total, kept = moment.images.len(), "crash images");
            for (n, image) in moment.images.iter().enumerate() {
                done.images += 1;
                let broken = one(&bench, ctx, terms, &history[..moment.events], image, n as u64).await;
                let said = |v: Violation| Violation {
                    what: format!(
                        "recovered from image {n} of a crash at {:.3} s: {}",
                        moment.at.as_secs_f64(),
                        v.what
                    ),
                    ..v
                };
                done.violations.extend(broken.into_iter().map(said));
                if done.violations.len() > 10 {
                    return done;
                }
            }
        }
        done
    }
}

/// Recovers one image, and judges what can be read then.
async fn one(
    bench: &Bench,
    ctx: &Ctx,
    terms: &Terms,
    before: &[Stamped],
    image: &Image,
    n: u64,
) -> Vec<Violation> {
    let history = History::new(false);
    let model = Model::from_image(bench.options(), n, image);
    let running = bench.start(&model, &history);
    let ctx = Ctx { history: history.clone(), bootstrap: bench.addresses().into(), ..ctx.clone() };
    bench.at_desk(async move { workload::read_all(&ctx).await }).await;
    bench.end(running);
    let mut all = before.to_vec();
    all.extend(history.take_events());
    let evidence = Evidence {
        history: all,
        media: files(model.media()),
        // Not `shown`: nothing had the time to be tidied up.
        terms: terms.clone(),
        ..Evidence::default()
    };
    check::judge(&evidence).violations
}
