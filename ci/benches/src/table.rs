//! The one table that the bench prints.

use std::fmt;

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Met,
    Missed,
    /// A figure without a target.
    Shown,
    /// The row could not be measured, and why.
    Failed(String),
}

impl Verdict {
    pub fn of(met: bool) -> Self {
        if met {
            Verdict::Met
        } else {
            Verdict::Missed
        }
    }
}

#[derive(Clone, Debug)]
pub struct Row {
    pub what: String,
    pub measured: String,
    pub raw: String,
    pub ratio: String,
    pub target: String,
    pub verdict: Verdict,
}

impl Row {
    /// A figure that no target judges.
    pub fn shown(what: impl Into<String>, measured: impl Into<String>) -> Self {
        Row {
            what: what.into(),
            measured: measured.into(),
            raw: String::new(),
            ratio: String::new(),
            target: String::new(),
            verdict: Verdict::Shown,
        }
    }

    /// A figure with another of the same run beside it, that no target judges.
    pub fn shown_against(
        what: impl Into<String>,
        measured: impl Into<String>,
        raw: impl Into<String>,
        ratio: impl Into<String>,
    ) -> Self {
        Row { raw: raw.into(), ratio: ratio.into(), ..Row::shown(what, measured) }
    }

    pub fn judged(
        what: impl Into<String>,
        measured: impl Into<String>,
        raw: impl Into<String>,
        ratio: impl Into<String>,
        target: impl Into<String>,
        met: bool,
    ) -> Self {
        Row {
            what: what.into(),
            measured: measured.into(),
            raw: raw.into(),
            ratio: ratio.into(),
            target: target.into(),
            verdict: Verdict::of(met),
        }
    }
}

#[derive(Default)]
pub struct Table(pub Vec<Row>);

impl Table {
    pub fn count(&self, v: &Verdict) -> usize {
        self.0.iter().filter(|r| std::mem::discriminant(&r.verdict) == std::mem::discriminant(v)).count()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | measured | raw, same run | ratio | target | verdict |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for r in &self.0 {
            let verdict = match &r.verdict {
                Verdict::Met => "met".to_string(),
                Verdict::Missed => "**missed**".to_string(),
                Verdict::Shown => String::new(),
                Verdict::Failed(why) => format!("**not measured**: {}", why.replace(['|', '\n'], " ")),
            };
            writeln!(
                f,
                "| {} | {} | {} | {} | {} | {verdict} |",
                r.what, r.measured, r.raw, r.ratio, r.target
            )?;
        }
        Ok(())
    }
}
