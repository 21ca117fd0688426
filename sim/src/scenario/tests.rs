//! Stories of files and plans.

use super::*;

const SMALL: &str = r#"
about = "a test"
[life]
seconds = { from = 5, to = 9 }
hosts = 2
[volume]
kind = { any = ["local", "nfs"] }
[[topic]]
name = "t"
partitions = { from = 1, to = 3 }
[[fault]]
times = { from = 0, to = 4 }
kill = { back = { from = 0.0, to = 1.0 }, elsewhere = { chance = 0.5 } }
[[fault]]
chance = 0.5
at = 2.5
for = { from = 1.0, to = 3.0 }
stall = { ops = { ops = ["sync"], path = ".log" } }
"#;

fn small() -> Scenario {
    Scenario::parse("scenarios/small.toml", SMALL).expect("parses")
}

#[test]
fn the_same_seed_draws_the_same_plan_and_others_differ() {
    let s = small();
    assert_eq!(s.plan(3).expect("a plan"), s.plan(3).expect("a plan"));
    let plans: Vec<Plan> = (0..40).map(|seed| s.plan(seed).expect("a plan")).collect();
    assert!(plans.iter().any(|p| p.faults.len() > 3) && plans.iter().any(|p| p.faults.len() <= 1));
    for p in &plans {
        assert!((5.0..=9.0).contains(&p.life.seconds));
        assert!(p.faults.windows(2).all(|w| w[0].at <= w[1].at), "in order of time");
        assert!(p.faults.iter().all(|f| f.at < p.life.seconds));
    }
}

#[test]
fn a_plan_is_a_scenario_file_that_draws_itself() {
    for seed in 0..40 {
        let plan = small().plan(seed).expect("a plan");
        let again = Scenario::parse("again.toml", &plan.to_toml()).expect("parses");
        assert_eq!(again.plan(seed + 1).expect("a plan"), plan, "whatever the seed");
    }
}

#[test]
fn what_is_laid_over_wins() {
    let mut s = small();
    s.set("volume.kind", "local").expect("set");
    s.set("life.seconds", "3").expect("set");
    let plan = s.plan(1).expect("a plan");
    assert_eq!((plan.volume.kind, plan.life.seconds), (crate::volume::Kind::Local, 3.0));
}

#[test]
fn mistakes_are_told_and_not_guessed_at() {
    for (bad, why) in [
        ("[[topic]]\nname = 't'\n[[fault]]\nkil = {}", "unknown variant"),
        ("[[topic]]\nname = 't'\n[[fault]]\nkill = {}\nterm = {}", "one thing done"),
        ("[[topic]]\nname = 't'\n[life]\nsecond = 3", "unknown field"),
        ("[[topic]]\nname = 't'\n[life]\nhosts = 0", "life.hosts"),
        ("seconds = 3", "unknown field"),
        ("", "[[topic]]"),
    ] {
        let e = Scenario::parse("x.toml", bad).and_then(|s| s.plan(0)).expect_err(bad).to_string();
        assert!(e.contains(why), "{bad}: {e}");
    }
}

#[test]
fn every_scenario_of_the_project_draws_plans() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios");
    let mut files = all(dir).expect("the scenarios");
    files.extend(all(&format!("{dir}/regressions")).expect("the regressions"));
    assert!(files.len() > 20, "{}", files.len());
    for s in files {
        assert!(!s.about().is_empty(), "{}: says what it is about", s.path);
        for seed in 0..20 {
            let plan = s.plan(seed).unwrap_or_else(|e| panic!("{e}"));
            let again = Scenario::parse(&s.path, &plan.to_toml()).and_then(|s| s.plan(0));
            assert_eq!(again.expect("the plan is a file"), plan, "{}", s.path);
        }
    }
}
