import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Groups whose offsets lie in a transaction of the Java client: consume, transform, produce. */
@SuppressWarnings("removal") // of constructors that make up the metadata of a member who is not there
class GroupTransactions extends Transactions {
  static Map<TopicPartition, OffsetAndMetadata> at(String topic, long offset) {
    return Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(offset, "m"));
  }

  /** The group's offset for partition 0, whether or not another is pending; -1 if there is none. */
  static long offset(String group, String topic) throws Exception {
    var all = Checks.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
    var found = all.get(new TopicPartition(topic, 0));
    return found == null ? -1 : found.offset();
  }

  /** The same as a consumer is told it, which takes stable ones only: -88 while it is held back. */
  static long stable(String group, String topic) {
    var tp = new TopicPartition(topic, 0);
    try (var c = Checks.consumer("group.id", group)) {
      var found = c.committed(Set.of(tp), Duration.ofMillis(1500)).get(tp);
      return found == null ? -1 : found.offset();
    } catch (org.apache.kafka.common.errors.TimeoutException unstable) {
      return -88;
    }
  }

  static void groups() {
    for (String protocol : List.of("classic", "consumer")) {
      Checks.checks.put(
          "txn_consume_transform_produce_" + protocol,
          () -> {
            String from = Checks.create("java-txn-from-" + protocol, 2);
            String to = Checks.create("java-txn-to-" + protocol, 2);
            String group = "java-txn-group-" + protocol;
            Checks.produce(from, Checks.numbered(60, 10));
            transform(from, to, group, protocol, 30);
            transform(from, to, group, protocol, 60); // another member goes on where the first stopped
            Checks.until(20, "60 values", () -> seen(to, COMMITTED).size() >= 60);
            List<String> got = seen(to, COMMITTED);
            Checks.same(got.size(), 60, "values");
            Checks.same(new HashSet<>(got).size(), 60, "different values");
          });
    }
    Checks.checks.put(
        "txn_offsets_follow_the_outcome",
        () -> {
          String topic = Checks.create("java-txn-offsets", 1);
          String group = "java-txn-offsets";
          var of = new ConsumerGroupMetadata(group);
          try (var p = producer("java-txn-offsets")) {
            p.beginTransaction();
            p.sendOffsetsToTransaction(at(topic, 5), of);
            Checks.same(offset(group, topic), -1L, "before the commit");
            p.commitTransaction();
            Checks.until(10, "committed", () -> stable(group, topic) == 5L);
            p.beginTransaction();
            p.sendOffsetsToTransaction(at(topic, 9), of);
            p.abortTransaction();
            Checks.until(10, "aborted", () -> stable(group, topic) == 5L);
          }
        });
    Checks.checks.put(
        "case_51_unstable_offsets_only_until_the_end",
        () -> {
          String topic = Checks.create("java-txn-unstable", 1);
          String group = "java-txn-unstable";
          Checks.admin.alterConsumerGroupOffsets(group, at(topic, 2)).all().get();
          try (var p = producer("java-txn-unstable")) {
            for (boolean commits : List.of(true, false)) {
              long before = stable(group, topic);
              p.beginTransaction();
              p.sendOffsetsToTransaction(at(topic, 7 + (commits ? 0 : 1)), new ConsumerGroupMetadata(group));
              Checks.same(stable(group, topic), -88L, "while pending, stable ones wanted");
              Checks.same(offset(group, topic), before, "while pending");
              if (commits) p.commitTransaction();
              else p.abortTransaction();
              Checks.until(10, "stable again", () -> stable(group, topic) == 7L);
            }
          }
        });
    Checks.checks.put(
        "case_51_a_new_member_waits_for_pending_offsets",
        () -> {
          String topic = Checks.create("java-txn-pending", 1);
          Checks.produce(topic, Checks.numbered(10, 10));
          try (var p = producer("java-txn-pending")) {
            p.beginTransaction();
            p.sendOffsetsToTransaction(at(topic, 6), new ConsumerGroupMetadata("java-txn-pending"));
            var member = new Checks.Member("java-txn-pending", topic, "isolation.level", COMMITTED);
            Checks.shares(List.of(1), member);
            Thread.sleep(1500);
            Checks.same(member.values, List.of(), "read before it is known where to begin");
            p.commitTransaction();
            Checks.until(20, "the member reads", () -> member.values.size() >= 4);
            Checks.same(member.values, Checks.numbered(10, 10).subList(6, 10), "values from offset 6 on");
            member.stop();
          }
        });
    Checks.checks.put(
        "txn_stale_generation_refused",
        () -> {
          String topic = Checks.create("java-txn-stale", 1);
          var member = new Checks.Member("java-txn-stale", topic);
          Checks.shares(List.of(1), member);
          try (var p = producer("java-txn-stale")) {
            p.beginTransaction();
            var stale = new ConsumerGroupMetadata("java-txn-stale", 4711, "nobody", Optional.empty());
            try {
              p.sendOffsetsToTransaction(at(topic, 3), stale);
              p.commitTransaction();
              throw new AssertionError("offsets of a member that is not there were committed");
            } catch (org.apache.kafka.clients.consumer.CommitFailedException expected) {
              p.abortTransaction();
            }
            Checks.same(offset("java-txn-stale", topic), -1L, "offset");
          }
          member.stop();
        });
  }

  /** Moves records until {@code upTo} are committed in all; every third transaction is aborted and done again. */
  static void transform(String from, String to, String group, String protocol, int upTo) throws Exception {
    List<String> how =
        new ArrayList<>(
            List.of("group.id", group, "isolation.level", COMMITTED, "max.poll.records", "7", "auto.offset.reset",
                "earliest", "enable.auto.commit", "false", "group.protocol", protocol));
    var d = new org.apache.kafka.common.serialization.ByteArrayDeserializer();
    try (var c = new KafkaConsumer<>(Checks.properties(how.toArray(String[]::new)), d, d);
        var p = producer(group)) {
      c.subscribe(List.of(from));
      int[] done = {seen(to, COMMITTED).size()};
      int round = 0;
      long end = System.nanoTime() + 60_000_000_000L;
      while (done[0] < upTo) {
        Checks.hold(System.nanoTime() < end, "only " + done[0] + " of " + upTo + " within 60 s");
        var records = c.poll(Duration.ofMillis(200));
        if (records.isEmpty()) continue;
        boolean aborts = ++round % 3 == 0;
        p.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> next = new java.util.HashMap<>();
        for (ConsumerRecord<byte[], byte[]> r : records) {
          p.send(new ProducerRecord<>(to, r.partition(), null, r.value()));
          next.put(new TopicPartition(from, r.partition()), new OffsetAndMetadata(r.offset() + 1));
        }
        p.sendOffsetsToTransaction(next, c.groupMetadata());
        if (aborts) {
          p.abortTransaction();
          for (TopicPartition tp : records.partitions()) c.seek(tp, records.records(tp).get(0).offset());
        } else {
          p.commitTransaction();
          done[0] += records.count();
        }
      }
    }
  }
}
