import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client under load on a broker that is ended and restarted: {@code Load ADDRESS MODE}.
 *
 * <p>An idempotent producer writes numbered records to four partitions without pause; a group
 * consumer reads them and commits. When {@code stop} comes on standard input, everything is read
 * back and compared with what was acknowledged, read and committed.
 */
public class Load {
  static final int PARTITIONS = 4;

  record Place(int partition, long offset) {}

  static final Map<Place, String> acked = new ConcurrentHashMap<>();
  static final Map<Place, String> read = new ConcurrentHashMap<>();
  static final Map<Integer, Long> committed = new ConcurrentHashMap<>();
  static final Map<Integer, Long> tried = new ConcurrentHashMap<>();
  static final ConcurrentLinkedQueue<String> failed = new ConcurrentLinkedQueue<>();
  static final ConcurrentLinkedQueue<String> changed = new ConcurrentLinkedQueue<>();
  static final ConcurrentLinkedQueue<String> errors = new ConcurrentLinkedQueue<>();
  static volatile boolean producing = true;
  static volatile boolean consuming = true;

  static void produce(String topic) {
    Properties p =
        Checks.properties(
            "acks", "all",
            "enable.idempotence", "true",
            "linger.ms", "2",
            "buffer.memory", "1000000",
            "max.block.ms", "120000",
            "reconnect.backoff.max.ms", "500",
            "delivery.timeout.ms", "120000");
    var s = new ByteArraySerializer();
    try (var producer = new KafkaProducer<>(p, s, s)) {
      long spoken = 0;
      for (int number = 0; producing; number++) {
        for (int partition = 0; partition < PARTITIONS; partition++) {
          String value = partition + ":" + number;
          producer.send(
              new ProducerRecord<>(topic, partition, null, Checks.bytes(value)),
              (where, error) -> {
                if (error != null) failed.add(error.toString());
                else acked.put(new Place(where.partition(), where.offset()), value);
              });
        }
        if (number % 10 == 0) Thread.sleep(10);
        if (System.nanoTime() - spoken > 500_000_000L && !committed.isEmpty()) {
          spoken = System.nanoTime();
          System.out.println("acked " + acked.size());
        }
      }
      producer.flush();
    } catch (Exception error) {
      failed.add(error.toString());
    }
  }

  static void consume(String topic, String group) {
    Properties p =
        Checks.properties(
            "group.id", group,
            "auto.offset.reset", "earliest",
            "enable.auto.commit", "false",
            "session.timeout.ms", "30000",
            "reconnect.backoff.max.ms", "500");
    var d = new ByteArrayDeserializer();
    try (var c = new KafkaConsumer<>(p, d, d)) {
      c.subscribe(List.of(topic));
      Map<TopicPartition, OffsetAndMetadata> position = new HashMap<>();
      long next = System.nanoTime();
      while (consuming) {
        for (ConsumerRecord<byte[], byte[]> r : c.poll(Duration.ofMillis(200))) {
          String value = new String(r.value());
          Place at = new Place(r.partition(), r.offset());
          String before = read.put(at, value);
          if (before != null && !before.equals(value)) changed.add(at + ": " + before + ", " + value);
          position.put(
              new TopicPartition(topic, r.partition()), new OffsetAndMetadata(r.offset() + 1));
        }
        if (System.nanoTime() > next && !position.isEmpty()) {
          commit(c, position);
          next = System.nanoTime() + 300_000_000L;
        }
      }
    } catch (Exception error) {
      errors.add(error.toString());
    }
  }

  static void commit(
      KafkaConsumer<byte[], byte[]> c, Map<TopicPartition, OffsetAndMetadata> position) {
    position.forEach((tp, o) -> tried.merge(tp.partition(), o.offset(), Math::max));
    try {
      c.commitSync(position, Duration.ofSeconds(120));
      position.forEach((tp, o) -> committed.put(tp.partition(), o.offset()));
    } catch (Exception error) {
      errors.add("commit: " + error);
    }
  }

  static String first(java.util.Collection<?> problems) {
    if (problems.isEmpty()) return null;
    return problems.size() + ": " + Arrays.toString(problems.stream().limit(3).toArray());
  }

  static void judge(String mode, String topic, String group, long started) {
    Map<Place, String> log = new HashMap<>();
    Map<Integer, Long> found = new HashMap<>();
    try (Admin admin = Admin.create(Checks.properties())) {
      readBack(topic, log);
      admin
          .listConsumerGroupOffsets(group)
          .partitionsToOffsetAndMetadata()
          .get()
          .forEach((tp, o) -> found.put(tp.partition(), o.offset()));
    } catch (Exception | AssertionError error) {
      Checks.report(mode + "_read_back", started, error.toString());
      return;
    }
    Checks.report(mode + "_read_back", started, log.isEmpty() ? "the log is empty" : null);

    List<String> missing = new ArrayList<>();
    acked.forEach((at, v) -> { if (!v.equals(log.get(at))) missing.add(at + " " + v + ", found " + log.get(at)); });
    Checks.report(mode + "_nothing_acked_missing", started, first(missing));

    List<String> twice = new ArrayList<>();
    Map<String, Place> seen = new HashMap<>();
    log.forEach(
        (at, v) -> {
          Place other = seen.put(v, at);
          if (other != null) twice.add(v + " at " + at + " and " + other);
        });
    Checks.report(mode + "_nothing_twice", started, first(twice));

    List<String> order = new ArrayList<>();
    for (int p = 0; p < PARTITIONS; p++) {
      Map<Long, String> one = new TreeMap<>();
      for (var e : log.entrySet()) {
        if (e.getKey().partition() == p) one.put(e.getKey().offset(), e.getValue());
      }
      long number = 0;
      for (var e : one.entrySet()) {
        if (e.getKey() != number || !e.getValue().equals(p + ":" + number)) {
          order.add("partition " + p + " offset " + e.getKey() + " holds " + e.getValue());
          break;
        }
        number++;
      }
    }
    Checks.report(mode + "_order_kept", started, first(order));
    Checks.report(mode + "_no_send_fails", started, first(failed));

    read.forEach((at, v) -> { if (!v.equals(log.get(at))) changed.add(at + " was " + v + ", is " + log.get(at)); });
    if (read.isEmpty()) changed.add("nothing was read");
    Checks.report(mode + "_what_was_read_stays", started, first(changed));

    List<String> lost = new ArrayList<>();
    committed.forEach(
        (p, o) -> {
          long at = found.getOrDefault(p, -1L);
          if (at < o || at > tried.get(p)) {
            lost.add("partition " + p + ": committed " + o + ", tried " + tried.get(p) + ", found " + at);
          }
        });
    if (committed.isEmpty()) lost.add("nothing was committed");
    Checks.report(mode + "_committed_offsets_survive", started, first(lost));
    if (mode.equals("sigterm")) {
      errors.addAll(failed);
      Checks.report("sigterm_no_error_reaches_the_user", started, first(errors));
    }
  }

  static void readBack(String topic, Map<Place, String> log) throws Exception {
    try (var c = Checks.consumer()) {
      List<TopicPartition> all = new ArrayList<>();
      for (int p = 0; p < PARTITIONS; p++) all.add(new TopicPartition(topic, p));
      c.assign(all);
      c.seekToBeginning(all);
      Map<TopicPartition, Long> ends = c.endOffsets(all);
      Checks.until(
          90,
          "all is read back",
          () -> {
            for (var r : c.poll(Duration.ofMillis(200))) {
              log.put(new Place(r.partition(), r.offset()), new String(r.value()));
            }
            return all.stream().allMatch(tp -> c.position(tp) >= ends.get(tp));
          });
    }
  }

  public static void main(String[] args) throws Exception {
    Checks.address = args[0];
    String mode = args[1];
    String topic = "java-load-" + mode;
    try (Admin admin = Admin.create(Checks.properties())) {
      Checks.admin = admin;
      Checks.create(topic, PARTITIONS);
    }
    Thread producer = new Thread(() -> produce(topic));
    Thread consumer = new Thread(() -> consume(topic, topic));
    producer.setDaemon(true);
    consumer.setDaemon(true);
    producer.start();
    consumer.start();
    while (System.in.read() != '\n') {}
    long started = System.nanoTime();
    producing = false;
    producer.join(130_000);
    Thread.sleep(1000);
    consuming = false;
    consumer.join(60_000);
    judge(mode, topic, topic, started);
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }
}
