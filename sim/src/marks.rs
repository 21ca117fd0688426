//! Marks: places in the broker and in the simulator that some seed must reach.
//!
//! A mark is a tracing event with the target `reached`; so the broker's code needs no state for it, and in
//! production it costs a comparison. `highwater::reached!` sets one.

use crate::world::now;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::{span, Event, Metadata, Subscriber};
use tracing_subscriber::filter::{filter_fn, EnvFilter};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

const TARGET: &str = "reached";

/// Counts the marks of this process.
#[derive(Clone, Default)]
pub struct Marks(Arc<Mutex<BTreeMap<String, u64>>>);

impl Marks {
    /// Listens from now on; with `log`, also prints what that filter lets through.
    pub fn listen(&self, log: Option<&str>) {
        // Only fails if somebody listens already, and then they have what they need.
        let Some(log) = log else {
            let _ = tracing::subscriber::set_global_default(self.clone());
            return;
        };
        let filter = EnvFilter::try_new(log).unwrap_or_else(|_| EnvFilter::new("info"));
        let marks = Beside(self.clone()).with_filter(filter_fn(|m: &Metadata<'_>| m.target() == TARGET));
        let printed = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .with_timer(SimTime)
            .with_filter(filter);
        let _ = tracing_subscriber::registry().with(marks).with(printed).try_init();
    }

    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.0.lock().map(|m| m.clone()).unwrap_or_default()
    }

    fn count(&self, event: &Event<'_>) {
        let mut name = Name(None);
        event.record(&mut name);
        if let (Some(name), Ok(mut counts)) = (name.0, self.0.lock()) {
            *counts.entry(name).or_default() += 1;
        }
    }
}

/// As the only listener: it says of every place but a mark that it is never interested, so that the spans which madsim
/// gives each task cost nothing.
impl Subscriber for Marks {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        self.count(event);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Beside others.
struct Beside(Marks);

impl<S: Subscriber> Layer<S> for Beside {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.0.count(event);
    }
}

struct Name(Option<String>);

impl Visit for Name {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "mark" {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

/// Stamps log lines with simulated time.
struct SimTime;

impl FormatTime for SimTime {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        match madsim::time::TimeHandle::try_current() {
            Some(_) => write!(w, "{:10.6}", now().as_secs_f64()),
            None => write!(w, "{:>10}", "-"),
        }
    }
}
