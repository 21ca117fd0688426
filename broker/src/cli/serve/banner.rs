//! What a starting broker says on stdout.

use highwater::config::BrokerConfig;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

/// Where it listens, where the data lies, what is promised, and one line to try.
pub fn banner(
    config: &BrokerConfig,
    bound: SocketAddr,
    advertised: &str,
    metrics: Option<SocketAddr>,
    data: &Path,
    control: &Path,
) -> String {
    let mut out = String::new();
    let mut line = |what: &str, value: &dyn std::fmt::Display| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "  {what:<11} {value}");
    };
    line("broker", &config.broker_id);
    line("listening", &bound);
    if advertised != bound.to_string() {
        line("advertised", &advertised);
    }
    line("data", &data.display());
    if control != data {
        line("cluster", &control.display());
    }
    line("durability", &config.topic_defaults.durability());
    match metrics {
        Some(addr) => line("metrics", &format_args!("http://{addr}/metrics")),
        None => line("metrics", &"off"),
    }
    line("try", &format_args!("kcat -b {advertised} -L"));
    format!("highwater {} serves\n{out}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pairs: &[(&str, &str)], advertised: &str, metrics: Option<&str>) -> String {
        let config = BrokerConfig::with(pairs).unwrap();
        let bound = "127.0.0.1:9092".parse().unwrap();
        banner(
            &config,
            bound,
            advertised,
            metrics.map(|m| m.parse().unwrap()),
            Path::new("/srv/data"),
            Path::new("/srv/data"),
        )
    }

    #[test]
    fn it_says_where_what_and_how_to_try() {
        let text = shown(&[], "127.0.0.1:9092", Some("127.0.0.1:9644"));
        for line in [
            "  broker      1",
            "  listening   127.0.0.1:9092",
            "  data        /srv/data",
            "  durability  every acknowledged batch is fsynced",
            "  metrics     http://127.0.0.1:9644/metrics",
            "  try         kcat -b 127.0.0.1:9092 -L",
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line:?} in\n{text}");
        }
        assert!(!text.contains("advertised"));
    }

    #[test]
    fn the_dial_and_another_name_are_said_too() {
        let text = shown(&[("log.flush.interval.messages", "500")], "b1.example:19092", None);
        assert!(text.contains("durability  fsynced every 500 records: a crash"), "{text}");
        assert!(
            text.contains("advertised  b1.example:19092") && text.contains("kcat -b b1.example:19092 -L")
        );
        assert!(text.contains("metrics     off"));
    }
}
