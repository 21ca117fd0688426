//! Stories of whole lives with a broker in memory.

use super::serve::serve;
use super::{Broker, Flaw, Shared};
use crate::check::{judge, Evidence, Violation};
use crate::history::{Event, History, Phase};
use crate::workload::{comes_back, create_topics, read_all, start, transactions_end, Ctx, Spec, TopicSpec};
use madsim::runtime::{Handle, Runtime};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const BROKER: &str = "10.0.1.1:9092";

fn topics() -> Vec<TopicSpec> {
    let topic =
        |name: &str, partitions| TopicSpec { name: name.into(), partitions, configs: Default::default() };
    vec![topic("t", 3), topic("u", 2)]
}

fn clients(text: &str) -> Vec<Spec> {
    #[derive(serde::Deserialize)]
    struct File {
        client: Vec<Spec>,
    }
    let file: File = toml::from_str(text).expect("clients");
    file.client
}

/// What is held against a broker after a life of some seconds, and what happened in it.
fn live(seed: u64, flaw: Flaw, specs: Vec<Spec>) -> (Vec<Violation>, Vec<crate::history::Stamped>) {
    let living =
        move || Runtime::with_seed_and_config(seed, Default::default()).block_on(life(seed, flaw, specs));
    std::thread::scope(|s| s.spawn(living).join()).expect("a life ends")
}

async fn life(seed: u64, flaw: Flaw, specs: Vec<Spec>) -> (Vec<Violation>, Vec<crate::history::Stamped>) {
    let addr = BROKER.parse().expect("an address");
    let broker: Shared = Arc::new(parking_lot::Mutex::new(Broker::new(flaw, seed)));
    let host =
        Handle::current().create_node().name("broker").ip("10.0.1.1".parse().expect("an address")).build();
    host.spawn(serve(broker, addr));
    let desk =
        Handle::current().create_node().name("desk").ip("10.0.9.9".parse().expect("an address")).build();
    let history = History::new(false);
    let (phase, seen) = watch::channel(Phase::Chaos);
    let lease = Duration::from_secs(10);
    let ctx = Ctx::new(history.clone(), vec![addr], seed, seen, Duration::from_secs(30), lease);
    let enter = |p: Phase| {
        history.record(Event::Phase(p));
        phase.send_replace(p);
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    enter(Phase::Chaos);
    let founder = ctx.clone();
    desk.spawn(async move { create_topics(&founder, &topics()).await }).await.expect("topics");
    let users = start(&ctx, &specs);
    tokio::time::sleep(Duration::from_secs(30)).await;
    enter(Phase::Heal);
    let prover = ctx.clone();
    desk.spawn(async move { comes_back(&prover).await }).await.expect("it comes back");
    enter(Phase::Prove);
    users.ended().await;
    let prover = ctx.clone();
    let proof = async move {
        transactions_end(&prover).await;
        read_all(&prover).await;
    };
    desk.spawn(proof).await.expect("a proof");
    enter(Phase::Done);
    let evidence = Evidence { history: history.take_events(), ..Evidence::default() };
    (judge(&evidence).violations, evidence.history)
}

const EVERYTHING: &str = r#"
[[client]]
kind = "transactional"
count = 3
topics = ["t"]
group = "g"
timeout-ms = [300, 3000]
fortune = { crash = 0.05, zombie = 0.1, late = 0.1, transaction-ms = [1000, 6000], sleep-ms = [200, 6000], late-ms = [20, 6000] }
[[client]]
kind = "transactional"
count = 2
id = "shared"
topics = ["t"]
fortune = { zombie = 0.1, back-ms = [100, 1000], sleep-ms = [20, 1000] }
[[client]]
kind = "pipeline"
count = 2
from = ["t"]
to = ["u"]
fortune = { crash = 0.05, zombie = 0.05, transaction-ms = [1000, 3000], sleep-ms = [200, 6000] }
[[client]]
kind = "producer"
idempotent = true
topics = ["t"]
rate = 3
[[client]]
kind = "committer"
group = "g"
ask = 1.0
stable = 0.7
rate = [5, 20]
[[client]]
kind = "consumer"
isolation = "committed"
[[client]]
kind = "consumer"
from = "seek"
isolation = "committed"
"#;

#[test]
fn an_honest_broker_is_never_blamed() {
    for seed in 0..8 {
        let (violations, events) = live(seed, Flaw::None, clients(EVERYTHING));
        if let Some(v) = violations.first() {
            let events: Vec<_> = v.events.iter().map(|e| format!("{e}: {:?}", events[*e])).collect();
            let all: std::collections::BTreeSet<String> =
                violations.iter().map(|v| format!("{} {}", v.promise, v.what)).collect();
            panic!("seed {seed}: {v:?}\n{}\n{all:#?}", events.join("\n"));
        }
        let acknowledged = |commit: bool| {
            let ends = events.iter().filter(|e| match &e.event {
                Event::TxnEndDone { sent, answer: Ok((0, ..)), .. } => {
                    matches!(events[*sent].event, Event::TxnEndSent { commit: c, .. } if c == commit)
                }
                _ => false,
            });
            ends.count()
        };
        let steps = events.iter().filter(|e| matches!(e.event, Event::PipeStep { .. })).count();
        let fenced = events.iter().filter(|e| matches!(e.event, Event::TxnFenced { .. })).count();
        let told = (acknowledged(true), acknowledged(false), steps, fenced);
        assert!(
            told.0 > 20 && told.1 > 10 && told.2 > 3 && told.3 > 0,
            "seed {seed}: too little happened: {told:?}"
        );
    }
}

/// Within some lives each flaw is found, and the promise that it breaks is named.
#[test]
fn every_flaw_is_found() {
    for (flaw, promise) in [
        (Flaw::TornMarker, "P7"),
        (Flaw::ZombiesWrite, "P4"),
        (Flaw::OpenIsShown, "P7"),
        (Flaw::AbortedIsShown, "P7"),
        (Flaw::OffsetsEarly, "P7"),
        (Flaw::NoMarkerAtTimeout, "P7"),
        (Flaw::AnyEndEnds, "P7"),
        (Flaw::SuccessorInherits, "P7"),
        (Flaw::OffsetsLost, "P8"),
        (Flaw::StableIsIgnored, "P8"),
        (Flaw::AnyMemberCommits, "P8"),
        (Flaw::CompleteFirst, "P7"),
        (Flaw::MarkerAgain, "P7"),
        (Flaw::RetriesAppended, "P4"),
    ] {
        let found = (0..8).find(|seed| {
            let (violations, _) = live(*seed, flaw, clients(EVERYTHING));
            violations.iter().any(|v| v.promise == promise)
        });
        assert!(found.is_some(), "{flaw:?} was not found");
    }
}
