import java.io.PrintWriter;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The Java client as the cluster's load: {@code ClusterLoad BOOTSTRAP TOPIC PARTITIONS GROUP DIR}.
 *
 * <p>The same four clients as {@code ../python/load.py}, with the same events and the same words on
 * standard input and output.
 */
public class ClusterLoad {
  static final long PAUSE_MS = 125;
  static final String PAD = " " + "x".repeat(80);

  static String bootstrap;
  static String topic;
  static int partitions;
  static String group;
  static Path folder;
  static volatile boolean stop;
  static volatile Map<Integer, Long> ends;

  /** JSON lines; {@code t} is CLOCK_MONOTONIC, which all processes of one machine share. */
  static class History {
    final PrintWriter file;

    History(String client, String role, String more) throws Exception {
      file = new PrintWriter(folder.resolve(client + ".jsonl").toFile());
      put("open", "\"client\":" + quoted(client) + ",\"role\":" + quoted(role) + more);
    }

    synchronized void put(String event, String fields) {
      file.print("{\"t\":" + now() + ",\"e\":\"" + event + "\"");
      file.print((fields.isEmpty() ? "" : "," + fields) + "}\n");
      file.flush();
    }

    void problem(String what, Exception error) {
      put("error", "\"what\":" + quoted(what) + ",\"error\":" + quoted(error.toString()));
    }
  }

  static String now() {
    return String.format(java.util.Locale.ROOT, "%.4f", System.nanoTime() / 1e9);
  }

  static String quoted(String s) {
    var out = new StringBuilder("\"");
    for (char c : s.toCharArray()) {
      if (c == '"' || c == '\\') out.append('\\').append(c);
      else if (c < ' ' || c > '~') out.append(String.format("\\u%04x", (int) c));
      else out.append(c);
    }
    return out.append('"').toString();
  }

  static String offsets(Map<Integer, Long> position) {
    return position.entrySet().stream()
        .map(e -> "\"" + e.getKey() + "\":" + e.getValue())
        .collect(Collectors.joining(",", "{", "}"));
  }

  static List<TopicPartition> places() {
    List<TopicPartition> all = new ArrayList<>();
    for (int p = 0; p < partitions; p++) all.add(new TopicPartition(topic, p));
    return all;
  }

  static Properties properties(Object... settings) {
    Properties p = new Properties();
    p.put("bootstrap.servers", bootstrap);
    for (int i = 0; i < settings.length; i += 2) p.put(settings[i], settings[i + 1]);
    return p;
  }

  static void produce(String client, boolean idempotent, Object... settings) throws Exception {
    History history = new History(client, "producer", ",\"idempotent\":" + idempotent);
    var s = new StringSerializer();
    try (var producer = new KafkaProducer<>(properties(settings), s, s)) {
      long due = System.nanoTime();
      for (int number = 0; !stop; number++) {
        for (int partition = 0; partition < partitions; partition++) {
          String of = "\"p\":" + partition + ",\"n\":" + number;
          String value = client + ":" + partition + ":" + number + PAD;
          history.put("send", of);
          try {
            producer.send(
                new ProducerRecord<>(topic, partition, null, value),
                (where, error) -> {
                  if (error == null) history.put("ack", of + ",\"o\":" + where.offset());
                  else history.put("fail", of + ",\"error\":" + quoted(error.toString()));
                });
          } catch (Exception error) {
            history.put("fail", of + ",\"error\":" + quoted(error.toString()));
          }
        }
        due = Math.max(due + PAUSE_MS * 1_000_000, System.nanoTime() - 1_000_000_000L);
        long left = (due - System.nanoTime()) / 1_000_000;
        if (left > 0) Thread.sleep(left);
      }
      producer.flush();
    }
    history.put("close", "");
  }

  static Map<Integer, Long> read(History history, ConsumerRecords<String, String> records) {
    Map<Integer, Long> position = new HashMap<>();
    for (TopicPartition tp : records.partitions()) {
      List<String> found = new ArrayList<>();
      for (ConsumerRecord<String, String> r : records.records(tp)) {
        String value = r.value();
        boolean whole = value != null && value.endsWith(PAD);
        String name = whole ? value.substring(0, value.length() - PAD.length()) : "damaged " + value;
        found.add("[" + r.offset() + "," + quoted(name) + "]");
        position.put(tp.partition(), r.offset() + 1);
      }
      history.put("poll", "\"p\":" + tp.partition() + ",\"r\":[" + String.join(",", found) + "]");
    }
    return position;
  }

  static void follow(String client) throws Exception {
    History history = new History(client, "follower", "");
    Map<Integer, Long> position = new HashMap<>();
    var d = new StringDeserializer();
    try (var consumer =
        new KafkaConsumer<>(properties("auto.offset.reset", "earliest", "enable.auto.commit", "false"), d, d)) {
      consumer.assign(places());
      consumer.seekToBeginning(places());
      Map<Integer, Long> zero = new TreeMap<>();
      places().forEach(tp -> zero.put(tp.partition(), 0L));
      history.put("assigned", "\"p\":" + zero.keySet() + ",\"o\":" + offsets(zero));
      long until = Long.MAX_VALUE;
      while (System.nanoTime() < until) {
        try {
          position.putAll(read(history, consumer.poll(Duration.ofMillis(100))));
        } catch (Exception error) {
          history.problem("poll", error);
        }
        if (ends == null) continue;
        if (until == Long.MAX_VALUE) until = System.nanoTime() + 60_000_000_000L;
        if (ends.entrySet().stream().allMatch(e -> position.getOrDefault(e.getKey(), 0L) >= e.getValue())) break;
      }
    }
    history.put("close", "");
  }

  /** Asks the coordinator for the group's offsets; null if it gave none. */
  static Map<Integer, Long> lookUp(KafkaConsumer<?, ?> c, History history, Collection<TopicPartition> of, String what) {
    String started = now();
    try {
      Map<TopicPartition, OffsetAndMetadata> answer = c.committed(new java.util.HashSet<>(of));
      Map<Integer, Long> found = new TreeMap<>();
      answer.forEach((tp, o) -> found.put(tp.partition(), o == null ? -1 : o.offset()));
      history.put("fetched", "\"t0\":" + started + ",\"o\":" + offsets(found));
      return found;
    } catch (Exception error) {
      history.problem(what, error);
      return null;
    }
  }

  static void commit(KafkaConsumer<?, ?> consumer, History history, Map<Integer, Long> position, int number) {
    String id = "\"id\":" + number;
    history.put("commit", id + ",\"o\":" + offsets(position));
    Map<TopicPartition, OffsetAndMetadata> wanted = new HashMap<>();
    position.forEach((p, o) -> wanted.put(new TopicPartition(topic, p), new OffsetAndMetadata(o)));
    try {
      consumer.commitSync(wanted);
      history.put("committed", id + ",\"o\":" + offsets(position));
    } catch (Exception error) {
      history.put("commit_failed", id + ",\"error\":" + quoted(error.toString()));
    }
  }

  static void member(String client) throws Exception {
    History history = new History(client, "member", "");
    Map<Integer, Long> position = new TreeMap<>();
    var d = new StringDeserializer();
    try (var consumer =
        new KafkaConsumer<>(
            properties("group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", "false",
                "session.timeout.ms", "10000", // see load.py
                "partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor"),
            d, d)) {
      consumer.subscribe(
          List.of(topic),
          new ConsumerRebalanceListener() {
            public void onPartitionsAssigned(Collection<TopicPartition> of) {
              Map<Integer, Long> found = lookUp(consumer, history, of, "offsets at assignment");
              history.put("assigned", numbers(of) + ",\"o\":" + (found == null ? "null" : offsets(found)));
            }

            public void onPartitionsRevoked(Collection<TopicPartition> of) {
              history.put("revoked", numbers(of));
              position.clear();
            }
          });
      long next = System.nanoTime() + 500_000_000L;
      long until = Long.MAX_VALUE;
      for (int number = 1; System.nanoTime() < until; ) {
        try {
          position.putAll(read(history, consumer.poll(Duration.ofMillis(100))));
        } catch (Exception error) {
          history.problem("poll", error);
        }
        if (System.nanoTime() > next && !position.isEmpty()) {
          commit(consumer, history, new TreeMap<>(position), number);
          if (number++ % 5 == 0) lookUp(consumer, history, places(), "offsets");
          next = System.nanoTime() + 500_000_000L;
        }
        if (until == Long.MAX_VALUE && ends != null) until = System.nanoTime() + 5_000_000_000L;
      }
    }
    history.put("close", "");
  }

  static String numbers(Collection<TopicPartition> of) {
    return "\"p\":" + of.stream().map(TopicPartition::partition).sorted().toList();
  }

  static Map<Integer, Long> endsNow() {
    Map<Integer, Long> found = new HashMap<>();
    var d = new StringDeserializer();
    try (var consumer = new KafkaConsumer<>(properties("enable.auto.commit", "false"), d, d)) {
      consumer.endOffsets(places()).forEach((tp, o) -> found.put(tp.partition(), o));
    }
    return found;
  }

  interface Work {
    void run() throws Exception;
  }

  static Thread start(String name, Work work) {
    Thread thread =
        new Thread(
            () -> {
              try {
                work.run();
              } catch (Exception error) {
                error.printStackTrace(); // its history then lacks "close", and the checker says so
              }
            },
            name);
    thread.setDaemon(true);
    thread.start();
    return thread;
  }

  static void say(String word) {
    System.out.println(word);
    System.out.flush();
  }

  static void awaitLine() throws Exception {
    while (System.in.read() != '\n') {}
  }

  public static void main(String[] args) throws Exception {
    bootstrap = args[0];
    topic = args[1];
    partitions = Integer.parseInt(args[2]);
    group = args[3];
    folder = Path.of(args[4]);
    List<Thread> producers =
        List.of(
            start("java-idempotent", () -> produce("java-idempotent", true)),
            start(
                "java-plain",
                () ->
                    produce(
                        "java-plain", false, "acks", "all", "enable.idempotence", "false", "metadata.max.age.ms", "500")));
    List<Thread> consumers =
        List.of(
            start("java-follower", () -> follow("java-follower")),
            start("java-member", () -> member("java-member")));
    say("ready");
    awaitLine();
    stop = true;
    for (Thread t : producers) t.join(140_000);
    say("produced");
    awaitLine(); // until the others are done, too
    ends = endsNow();
    for (Thread t : consumers) t.join(120_000);
    say("done");
    Runtime.getRuntime().halt(0);
  }
}
