//! Names what is counted, for Prometheus.
//!
//! Rendering reads memory only: it takes no lock that is held across I/O, so that a scrape is answered
//! while a volume hangs.

use super::samples::{LagSample, MarksSample, PartitionSample, Samples, TopicSample};
use super::{Metrics, ServerMetrics, StorageMetrics};
use prometheus_client::encoding::{text, DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;

/// What [`Exposition::render`] gives (OpenMetrics 1.0, "Text Format").
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything that is counted, under its public name.
#[derive(Debug)]
pub struct Exposition(Registry);

impl Exposition {
    /// `samples` is asked at each scrape for what is not counted but looked at.
    pub fn new(metrics: &Metrics, samples: Arc<dyn Samples>) -> Self {
        let mut registry = Registry::with_prefix("highwater");
        register_server(&mut registry, &metrics.server);
        register_storage(&mut registry, &metrics.storage);
        registry.register_collector(Box::new(AtScrape(samples)));
        Exposition(registry)
    }

    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail; the encoder has no error of its own.
        let _ = text::encode(&mut out, &self.0);
        out
    }
}

fn register_server(r: &mut Registry, m: &ServerMetrics) {
    r.register("requests", "Requests answered, by API and by the first error in them", m.requests.clone());
    r.register_with_unit(
        "request_duration",
        "From a request's last byte read to its answer ready; long polls and waits for an fsync included",
        Unit::Seconds,
        m.request_seconds.clone(),
    );
    r.register_with_unit("request_size", "Request frames received", Unit::Bytes, m.request_bytes.clone());
    r.register_with_unit("response_size", "Response frames sent", Unit::Bytes, m.response_bytes.clone());
    r.register("connections", "Connections that are open", m.connections.clone());
    r.register("connections_accepted", "Connections accepted", m.connections_accepted.clone());
    r.register(
        "connections_refused",
        "Connections closed at once because max.connections was reached",
        m.connections_refused.clone(),
    );
}

fn register_storage(r: &mut Registry, m: &StorageMetrics) {
    r.register("log_writes", "Write requests sent to log segments", m.log_writes.clone());
    r.register("log_syncs", "Syncs of log segments", m.log_syncs.clone());
    r.register_with_unit("log_sync_duration", "Time per log sync", Unit::Seconds, m.sync_seconds.clone());
    r.register_with_unit(
        "commit_idle",
        "Time in which record batches waited and their partition's committer did nothing",
        Unit::Seconds,
        m.commit_idle_seconds.clone(),
    );
    r.register("batches_per_sync", "Record batches that shared one sync", m.batches_per_sync.clone());
    r.register("batches_in", "Record batches appended", m.batches_in.clone());
    r.register("batches_out", "Record batches read for consumers", m.batches_out.clone());
    r.register_with_unit("records_in", "Record batches appended", Unit::Bytes, m.bytes_in.clone());
    r.register_with_unit(
        "records_out",
        "Record batches read for consumers",
        Unit::Bytes,
        m.bytes_out.clone(),
    );
    r.register("stalled_partitions", "Partitions whose volume does not answer", m.stalled_partitions.clone());
    r.register_with_unit("recovery_read", "Log read by recovery", Unit::Bytes, m.recovery_bytes.clone());
    r.register_with_unit(
        "recovery_duration",
        "Time per partition recovered",
        Unit::Seconds,
        m.recovery_seconds.clone(),
    );
    r.register(
        "records_decoded",
        "Records opened on the produce and fetch paths or for any reason not named below; must stay 0",
        m.records_opened.clone(),
    );
    r.register(
        "records_decoded_lookup",
        "Records opened to find the first one at or after a timestamp",
        m.records_opened_lookup.clone(),
    );
    r.register(
        "records_decoded_compacted",
        "Records opened on produce to compacted topics, to refuse those without a key",
        m.records_opened_compacted.clone(),
    );
    r.register("open_files", "Files held open by partitions", m.open_files.clone());
}

#[derive(Debug)]
struct AtScrape(Arc<dyn Samples>);

impl prometheus_client::collector::Collector for AtScrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        partitions(&mut encoder, &self.0.partitions())?;
        topics(&mut encoder, &self.0.topics())?;
        lags(&mut encoder, &self.0.group_lags())
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PartitionLabels {
    topic: String,
    partition: i32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GroupLabels {
    group: String,
    topic: String,
    partition: i32,
}

type MarkGauge = (&'static str, &'static str, fn(&MarksSample) -> i64);

const MARK_GAUGES: &[MarkGauge] = &[
    ("partition_high_watermark", "End of what consumers may read, as an offset", |m| m.hwm),
    ("partition_log_end_offset", "End of the log, as an offset", |m| m.leo),
    ("partition_log_start_offset", "First offset of the log", |m| m.log_start),
    ("partition_leader_epoch", "Leader epoch", |m| m.epoch),
    ("partition_log_bytes", "Bytes of log", |m| m.bytes),
];

fn partitions(encoder: &mut DescriptorEncoder, samples: &[PartitionSample]) -> fmt::Result {
    let labels: Vec<PartitionLabels> =
        samples.iter().map(|p| PartitionLabels { topic: p.topic.clone(), partition: p.partition }).collect();
    let help = "1 while this broker serves the partition";
    let mut gauge = encoder.encode_descriptor("partition_leading", help, None, MetricType::Gauge)?;
    for (sample, labels) in samples.iter().zip(&labels) {
        gauge.encode_family(labels)?.encode_gauge(&i64::from(sample.leading))?;
    }
    for (name, help, value) in MARK_GAUGES {
        let mut gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (sample, labels) in samples.iter().zip(&labels) {
            if let Some(marks) = &sample.marks {
                gauge.encode_family(labels)?.encode_gauge(&value(marks))?;
            }
        }
    }
    Ok(())
}

fn topics(encoder: &mut DescriptorEncoder, samples: &[TopicSample]) -> fmt::Result {
    let help = "The durability dial, flush.messages: 1 is fsynced before every acknowledgement";
    let mut gauge = encoder.encode_descriptor("topic_flush_messages", help, None, MetricType::Gauge)?;
    for sample in samples {
        gauge.encode_family(&[("topic", sample.topic.as_str())])?.encode_gauge(&sample.flush_messages)?;
    }
    Ok(())
}

fn lags(encoder: &mut DescriptorEncoder, samples: &[LagSample]) -> fmt::Result {
    let help = "Records between a group's committed offset and the high watermark";
    let mut gauge = encoder.encode_descriptor("group_lag", help, None, MetricType::Gauge)?;
    for s in samples {
        let labels = GroupLabels { group: s.group.clone(), topic: s.topic.clone(), partition: s.partition };
        gauge.encode_family(&labels)?.encode_gauge(&s.lag)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::ApiKey;
    use std::time::Duration;

    #[derive(Debug)]
    struct Fixed;

    impl Samples for Fixed {
        fn partitions(&self) -> Vec<PartitionSample> {
            let marks = MarksSample { epoch: 7, log_start: 10, hwm: 20, leo: 25, bytes: 4096 };
            let topic = "odd\"name".to_owned();
            let open =
                PartitionSample { topic: topic.clone(), partition: 3, leading: true, marks: Some(marks) };
            vec![open, PartitionSample { topic, partition: 4, leading: false, marks: None }]
        }

        fn topics(&self) -> Vec<TopicSample> {
            vec![TopicSample { topic: "t".to_owned(), flush_messages: 100 }]
        }

        fn group_lags(&self) -> Vec<LagSample> {
            vec![LagSample { group: "g".to_owned(), topic: "t".to_owned(), partition: 0, lag: 5 }]
        }
    }

    #[test]
    fn everything_counted_has_a_name_a_help_text_and_a_unit() {
        let metrics = Metrics::default();
        metrics.server.answered(ApiKey::Produce, 0, Duration::from_millis(3));
        metrics.server.answered(ApiKey::Produce, 56, Duration::from_millis(3));
        metrics.storage.bytes_in.inc_by(17);
        let text = Exposition::new(&metrics, Arc::new(Fixed)).render();
        for line in [
            "highwater_requests_total{api=\"Produce\",error=\"NONE\"} 1",
            "highwater_requests_total{api=\"Produce\",error=\"KAFKA_STORAGE_ERROR\"} 1",
            "highwater_request_duration_seconds_count{api=\"Produce\"} 2",
            "highwater_records_in_bytes_total 17",
            "highwater_records_decoded_total 0",
            "highwater_partition_high_watermark{topic=\"odd\\\"name\",partition=\"3\"} 20",
            "highwater_partition_log_end_offset{topic=\"odd\\\"name\",partition=\"3\"} 25",
            "highwater_partition_log_start_offset{topic=\"odd\\\"name\",partition=\"3\"} 10",
            "highwater_topic_flush_messages{topic=\"t\"} 100",
            "highwater_group_lag{group=\"g\",topic=\"t\",partition=\"0\"} 5",
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line:?} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        assert!(text.contains("highwater_partition_leading{topic=\"odd\\\"name\",partition=\"4\"} 0\n"));
        assert!(!text.contains("watermark{topic=\"odd\\\"name\",partition=\"4\"}"), "a mark nobody knows");
        let names: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("# TYPE ")).collect();
        for name in &names {
            let name = name.split(' ').next().unwrap_or_default();
            assert!(text.contains(&format!("# HELP {name} ")), "no help for {name}");
        }
        assert!(names.len() > 20, "only {} metrics", names.len());
    }
}
