//! What brokers that nobody uses ask of the volume, and how that grows.
//!
//! Counted are calls of the controller and of one other broker, by strace. A broker's work follows a schedule (README,
//! *Several brokers*): its own heartbeat each beat, a look at the controller's heartbeat or at all of them each half beat.
//! So three measured costs (a heartbeat, a listing, a read of another's heartbeat) give the rate for any number of brokers;
//! what is said of more brokers than ran is that calculation, and is marked as one.

use super::probe::{Load, Plan};
use super::{Members, LEASE, SHORT_LEASE};
use crate::strace::{self, Calls};
use crate::table::Row;
use crate::Bench;
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};

/// How many brokers the calculation is made for.
const MANY: i32 = 100;
/// As the broker has it: heartbeats that a broker reads a second at most if nothing depends on who is there.
const READS: f64 = 16.0;

/// What was counted, a second.
struct Idle {
    brokers: i32,
    partitions: i32,
    controller: Calls,
    other: Option<Calls>,
}

pub fn operations(b: &mut Bench) -> Result<()> {
    strace::check()?;
    let (sizes, lease): (&[(i32, i32)], _) = match b.quick {
        true => (&[(1, 10), (2, 10), (2, 40)], SHORT_LEASE),
        false => (&[(1, 10), (3, 10), (9, 10), (3, 200)], LEASE),
    };
    let mut all = Vec::new();
    for &(brokers, partitions) in sizes {
        let idle = measure(b, brokers, partitions, lease)?;
        b.add(Row::shown(
            format!(
                "idle, lease {} s, {}, {partitions} partitions: file operations per broker and second",
                lease.as_secs(),
                counted(brokers)
            ),
            words(&idle),
        ));
        all.push(idle);
    }
    growth(b, &all, lease)
}

fn counted(brokers: i32) -> String {
    format!("{brokers} broker{}", if brokers == 1 { "" } else { "s" })
}

fn words(idle: &Idle) -> String {
    let one = |who: &str, calls: &Calls| {
        let kinds: Vec<String> = calls.0.iter().map(|(kind, n)| format!("{kind} {n:.1}")).collect();
        format!("{who} {:.1} ({})", calls.total(), kinds.join(", "))
    };
    let others = idle.other.iter().map(|calls| one("; another", calls)).collect::<String>();
    one("controller", &idle.controller) + &others
}

fn measure(b: &Bench, brokers: i32, partitions: i32, lease: Duration) -> Result<Idle> {
    const TRACED: [i32; 2] = [1, 2];
    let name = format!("idle-{brokers}-{partitions}");
    let members = Members::start(b, &name, brokers, lease, |setup| {
        let file = setup.data.with_extension(format!("{}.strace", setup.id));
        setup.trace = TRACED.contains(&setup.id).then_some(file);
    })?;
    members.create_topic("idle", partitions)?;
    let routes = members.routes("idle");
    members.settle(&routes, partitions as usize, 0)?;
    let began = Instant::now();
    let every: Vec<i32> = (0..partitions).collect();
    let fill = Load::start(&routes, &Plan::once(&every, 1))?;
    fill.until_acked(&every, began, Duration::from_secs(60))?;
    drop(fill);
    // What the topic's creation and the records led to is over by then.
    std::thread::sleep(lease / 2);

    routes.refresh(Instant::now());
    ensure!(routes.controller() == TRACED[0], "broker {} is controller", routes.controller());
    let data = b.dir.join(&name);
    let traced = TRACED.iter().filter(|id| **id <= brokers);
    let traces =
        traced.map(|id| Ok((members.trace(*id)?.as_path(), data.as_path()))).collect::<Result<Vec<_>>>()?;
    let mut calls = Calls::watch(&traces, lease * 2)?.into_iter();
    let controller = calls.next().context("nothing was traced")?;
    let idle = Idle { brokers, partitions, controller, other: calls.next() };
    members.stop()?;
    Ok(idle)
}

/// What each step of an idle broker's schedule costs, in calls.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Costs {
    /// Heartbeats of its own, a second.
    own: f64,
    /// One listing of all.
    listing: f64,
    /// One read of another's heartbeat.
    read: f64,
}

impl Costs {
    /// From the controller, which looks at all brokers each half beat.
    fn of(controllers: &[(i32, &Calls)], lease: f64) -> Self {
        let looks = 20.0 / lease;
        let points: Vec<(f64, f64)> =
            controllers.iter().map(|(n, calls)| (f64::from(n - 1), calls.total())).collect();
        let (alone, each) = line(&points);
        // A listing makes a file, but writes and syncs nothing.
        let own: Vec<f64> = controllers.iter().map(|(_, c)| c.of("write") + c.of("sync")).collect();
        let own = own.iter().sum::<f64>() / own.len() as f64;
        Costs { own, listing: (alone - own) / looks, read: each / looks }
    }

    /// Calls a second of the controller of so many brokers.
    fn controller(&self, brokers: i32, lease: f64) -> f64 {
        self.own + 20.0 / lease * (self.listing + self.read * f64::from(brokers - 1))
    }

    /// Calls a second of each of the others.
    fn other(&self, brokers: i32, lease: f64) -> f64 {
        let half_beat = lease / 20.0;
        let pause = (f64::from(brokers) / READS).min(lease / 2.0);
        let looks = 1.0 / (half_beat * (pause / half_beat).ceil().max(1.0));
        let glances = 1.0 / half_beat - looks;
        self.own + looks * (self.listing + self.read * f64::from(brokers - 1)) + glances * self.read
    }
}

/// The line through the points, by least squares: its value at 0, and its slope.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let (x, y) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let slope = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / spread;
    (y - slope * x, slope)
}

fn growth(b: &mut Bench, all: &[Idle], lease: Duration) -> Result<()> {
    let lease = lease.as_secs_f64();
    let terms = format!("lease {lease:.0} s");
    let least = all.iter().map(|i| i.partitions).min().context("nothing was measured")?;
    let (few, many): (Vec<&Idle>, Vec<&Idle>) = all.iter().partition(|i| i.partitions == least);
    let controllers: Vec<(i32, &Calls)> = few.iter().map(|i| (i.brokers, &i.controller)).collect();
    let costs = Costs::of(&controllers, lease);
    let more = many.first().context("only one number of partitions was measured")?;
    let same = few.iter().find(|i| i.brokers == more.brokers).context("nothing to compare with")?;
    let per_partition =
        (more.controller.total() - same.controller.total()) / f64::from(more.partitions - same.partitions);
    let check: Vec<String> = few
        .iter()
        .filter_map(|i| {
            let (said, is) = (costs.other(i.brokers, lease), i.other.as_ref()?.total());
            Some(format!("{said:.1} for another of {}, measured {is:.1}", i.brokers))
        })
        .collect();
    b.add(Row::shown_against(
        format!("idle, {terms}: how that grows"),
        format!(
            "controller {:.1} + {:.1} per other broker; per partition {per_partition:+.3}",
            costs.controller(1, lease),
            costs.controller(2, lease) - costs.controller(1, lease)
        ),
        format!("calculated {}", check.join("; ")),
        "",
    ));
    let (controller, other) = (costs.controller(MANY, lease), costs.other(MANY, lease));
    b.add(Row::shown(
        format!("idle, {terms}, {MANY} brokers: **extrapolated**, not measured"),
        format!(
            "controller {controller:.0}, each other {other:.0}, all together {:.0}",
            controller + other * f64::from(MANY - 1)
        ),
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_points_that_lie_on_one() {
        let (at_zero, slope) = line(&[(0.0, 5.0), (2.0, 11.0), (8.0, 29.0)]);
        assert!((at_zero - 5.0).abs() < 1e-9 && (slope - 3.0).abs() < 1e-9);
    }

    #[test]
    fn costs_are_found_again_in_what_they_lead_to() {
        let costs = Costs { own: 2.0, listing: 7.0, read: 4.0 };
        let calls = |n| {
            let total = costs.controller(n, 10.0);
            Calls([("sync", 1.0), ("write", 1.0), ("open", total - 2.0)].into())
        };
        let (one, three, nine) = (calls(1), calls(3), calls(9));
        let found = Costs::of(&[(1, &one), (3, &three), (9, &nine)], 10.0);
        assert!((found.own - 2.0).abs() < 1e-9, "{found:?}");
        assert!((found.listing - 7.0).abs() < 1e-9 && (found.read - 4.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn others_look_at_all_the_more_seldom_the_more_there_are() {
        let reads = Costs { own: 0.0, listing: 0.0, read: 1.0 };
        // Up to eight: each half beat. Nine: each beat, the controller in between. A hundred: twice a lease.
        assert_eq!(reads.other(8, 10.0), 14.0);
        assert_eq!(reads.other(9, 10.0), 9.0);
        assert!((reads.other(100, 10.0) - (0.2 * 99.0 + 1.8)).abs() < 1e-9);
    }
}
