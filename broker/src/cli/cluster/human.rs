//! The status of a cluster as lines for people: one for each fact, which begins with what it is about.

use crate::cli::output::{say, Output};
use highwater::cluster::status::{Broker, Controller, Heard, Of, Place, Share, Standing, State, Status};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// Places that one line names, of those that have the same trouble.
const NAMED: usize = 8;

pub fn print<W: Write>(root: &Path, s: &Status, all: bool, out: &mut Output<W>) {
    let alive = s.brokers.iter().filter(|b| b.standing == Standing::Alive).count();
    say!(
        out,
        "cluster {}: {alive} of {} alive, {} of {}, {}",
        s.cluster_id.as_deref().unwrap_or("(unreadable)"),
        count(s.brokers.len(), "broker"),
        count(s.partitions, "partition"),
        count(s.topics, "topic"),
        count(s.slots, "group slot"),
    );
    say!(out, "controller: {}", controller(&s.controller));
    if let Some(m) = &s.metadata {
        let epoch = m.epoch.map_or_else(|| "none written yet".into(), |e| format!("epoch {}", e.0));
        say!(out, "metadata: {epoch}, change {}", m.change);
    }
    for b in &s.brokers {
        say!(out, "broker {}: {}", b.name.broker, broker(b));
    }
    if all {
        for p in &s.places {
            say!(out, "{}", place(p));
        }
    } else {
        for ((state, why), places) in troubles(s) {
            say!(out, "{state}: {}: {why}", named(&places));
        }
    }
    for u in &s.unreadable {
        say!(out, "unreadable: {}: {}", root.join(&u.path).display(), u.why);
    }
    for o in &s.orphaned {
        say!(out, "orphaned: {}: {}", root.join(&o.dir).display(), o.why);
    }
    for d in &s.deleting {
        let left = if d.files_left { "its files are still there" } else { "its files are gone" };
        say!(out, "deleting: {} ({}): {left}", d.topic, d.topic_id);
    }
    for note in &s.notes {
        say!(out, "note: {note}");
    }
    say!(out, "{}", summary(s));
}

fn controller(c: &Controller) -> String {
    let epoch = c.epoch.map_or_else(String::new, |e| format!("epoch {}", e.0));
    let who = c.holder.map_or_else(String::new, |h| format!(", broker {} (lease {:x})", h.broker, h.lease));
    match (&c.why, epoch.is_empty()) {
        (None, _) => format!("{epoch}{who}"),
        (Some(why), true) => format!("none: {why}"),
        (Some(why), false) => format!("none: {epoch}{who}: {why}"),
    }
}

fn broker(b: &Broker) -> String {
    let standing = match b.standing {
        Standing::Unreadable => "unreadable".into(),
        other => other.to_string(),
    };
    let heard = match &b.heartbeat {
        Heard::WrittenWithinMs(ms) => format!(", heartbeat written within {}", within(*ms)),
        Heard::StillForMs(ms) => format!(", heartbeat still for {}", seconds(*ms)),
        Heard::Nothing(_) if b.standing != Standing::Unreadable => String::new(),
        Heard::Nothing(why) => format!(", heartbeat {why}"),
    };
    let address = b.address.as_deref().map_or_else(String::new, |a| format!(", {a}"));
    let incarnation = b.incarnation.map_or_else(String::new, |i| format!(", incarnation {}", i.simple()));
    let host =
        b.domain.as_deref().filter(|d| !d.is_empty()).map_or_else(String::new, |d| format!(", host {d}"));
    let lease = b.lease_ms.map_or_else(String::new, |ms| format!(" of {}", seconds(ms)));
    let leads = leads(b.led, b.assigned);
    format!("{standing}{heard}, leads {leads}, lease {:x}{lease}{address}{incarnation}{host}", b.name.lease)
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

/// Rounded up: it is the most that it can be.
fn within(ms: u64) -> String {
    seconds(ms.saturating_add(99))
}

fn leads(led: Share, assigned: Share) -> String {
    let of = |led: usize, assigned: usize, what: &str| match led == assigned {
        true => count(led, what),
        false => format!("{led} of {}", count(assigned, what)),
    };
    let partitions = of(led.partitions, assigned.partitions, "partition");
    format!("{partitions} and {}", of(led.slots, assigned.slots, "slot"))
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn place(p: &Place) -> String {
    let assigned =
        p.assigned.map_or_else(|| "nobody".into(), |a| format!("broker {} (lease {:x})", a.broker, a.lease));
    let claim = p.claim.as_ref().map_or_else(
        || "no claim".into(),
        |c| {
            let who = c.holder.as_deref().unwrap_or("nobody who can be read");
            let gave = if c.relinquished { ", relinquished" } else { "" };
            format!("claim {} by {who}{gave}", c.epoch.0)
        },
    );
    let manifest = p.manifest.map_or_else(|| "no manifest".into(), |e| format!("manifest {}", e.0));
    let why = p.why.as_deref().map_or_else(String::new, |why| format!(": {why}"));
    format!("{}: {}: assigned to {assigned}, {claim}, {manifest}{why}", p.of, p.state)
}

/// Places that are not well, those with the same trouble together.
fn troubles(s: &Status) -> BTreeMap<(State, &str), Vec<&Of>> {
    let mut troubles: BTreeMap<(State, &str), Vec<&Of>> = BTreeMap::new();
    for p in s.places.iter().filter(|p| p.state != State::Led) {
        troubles.entry((p.state, p.why.as_deref().unwrap_or_default())).or_default().push(&p.of);
    }
    troubles
}

fn named(places: &[&Of]) -> String {
    let names: Vec<String> = places.iter().take(NAMED).map(ToString::to_string).collect();
    match places.len().saturating_sub(NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

fn summary(s: &Status) -> String {
    if s.well {
        return "all is well".into();
    }
    let mut wrong: Vec<String> = Vec::new();
    if !s.controller.in_office {
        wrong.push("no controller".into());
    }
    let broken = |b: &&Broker| matches!(b.standing, Standing::Silent | Standing::Unreadable);
    let brokers = s.brokers.iter().filter(broken).count();
    if brokers > 0 {
        wrong.push(format!("{} silent", count(brokers, "broker")));
    }
    let states = s.states.iter().filter(|(state, _)| **state != State::Led);
    wrong.extend(states.map(|(state, n)| format!("{} {state}", count(*n, "place"))));
    if !s.orphaned.is_empty() {
        wrong.push(format!("{} orphaned", s.orphaned.len()));
    }
    if !s.unreadable.is_empty() {
        wrong.push(format!("{} unreadable", s.unreadable.len()));
    }
    format!("not well: {}", wrong.join(", "))
}
