import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The Java client in the bank of {@code ../python/bank.py}: {@code Bank BOOTSTRAP DIR}.
 *
 * <p>Two tellers and two auditors, who are a group, with the same events and the same words on standard input and output.
 */
public class Bank {
  static final int ACCOUNTS = 6;
  static final int BOOKS = 3;
  static final long PAUSE_MS = 200;
  static final String TIMEOUT_MS = "20000";
  static final long PATIENCE_NS = 60_000_000_000L;

  static volatile boolean stop;
  static volatile Map<TopicPartition, Long> ends;
  static volatile long auditUntil = Long.MAX_VALUE; // by System.nanoTime()

  interface Call {
    void run() throws Exception;
  }

  /** Repeats a call of the transactional API for as long as the client says that this is the thing to do. */
  static void again(Call call) throws Exception {
    long end = System.nanoTime() + PATIENCE_NS;
    while (true) {
      try {
        call.run();
        return;
      } catch (TimeoutException error) {
        if (System.nanoTime() > end) throw error;
      }
    }
  }

  /** A producer that has taken the transactional id; null if it is over before. */
  static KafkaProducer<String, String> opened(ClusterLoad.History history, String id, BooleanSupplier over)
      throws Exception {
    while (!over.getAsBoolean()) {
      var s = new StringSerializer();
      var p =
          new KafkaProducer<>(
              ClusterLoad.properties(
                  "transactional.id", id, "transaction.timeout.ms", TIMEOUT_MS, "max.block.ms", "15000",
                  "delivery.timeout.ms", "20000", "request.timeout.ms", "10000"),
              s,
              s);
      try {
        again(p::initTransactions);
        return p;
      } catch (KafkaException error) {
        history.problem("initTransactions", error);
        p.close(Duration.ZERO);
        Thread.sleep(500);
      }
    }
    return null;
  }

  static boolean fatal(Exception error) {
    return error instanceof ProducerFencedException
        || error instanceof OutOfOrderSequenceException
        || error instanceof InvalidProducerEpochException
        || error instanceof AuthorizationException
        || error instanceof TimeoutException
        || error instanceof IllegalStateException;
  }

  /** What became of a transaction that broke off, once it is aborted or given up. */
  static String endBadly(
      KafkaProducer<String, String> p, ClusterLoad.History history, Exception error, boolean asked) {
    history.problem("transaction", error);
    if (!fatal(error)) {
      try {
        again(p::abortTransaction);
        return "aborted";
      } catch (Exception worse) {
        history.problem("abortTransaction", worse);
      }
    }
    return asked ? "unknown" : "dropped";
  }

  static class Teller {
    final String name;
    final ClusterLoad.History history;
    final Random chance;
    KafkaProducer<String, String> producer;

    Teller(String name) throws Exception {
      this.name = name;
      history = new ClusterLoad.History(name, "teller", "");
      chance = new Random(name.hashCode());
    }

    void work() throws Exception {
      for (int number = 0; !stop; ) {
        if (producer == null) {
          producer = opened(history, name, () -> stop);
          continue;
        }
        number++;
        String kind = number % 25 == 13 ? "zombie" : number % 5 == 4 ? "abort" : "commit";
        Map<Integer, Integer> legs = legs();
        String list =
            legs.entrySet().stream()
                .map(e -> "[" + e.getKey() + "," + e.getValue() + "]")
                .collect(Collectors.joining(",", "[", "]"));
        history.put("begin", "\"n\":" + number + ",\"kind\":\"" + kind + "\",\"legs\":" + list);
        String outcome = transfer(number, kind, legs);
        history.put(outcome, "\"n\":" + number);
        if (outcome.equals("unknown") || outcome.equals("dropped")) {
          if (producer != null) producer.close(Duration.ZERO);
          producer = null;
        }
        Thread.sleep(PAUSE_MS);
      }
      if (producer != null) producer.close(Duration.ofSeconds(5));
      history.put("close", "");
    }

    Map<Integer, Integer> legs() {
      List<Integer> accounts = new ArrayList<>();
      for (int a = 0; a < ACCOUNTS; a++) accounts.add(a);
      Collections.shuffle(accounts, chance);
      Map<Integer, Integer> legs = new HashMap<>();
      int sum = 0;
      for (int a : accounts.subList(1, 2 + chance.nextInt(2))) {
        int amount = 1 + chance.nextInt(100);
        legs.put(a, amount);
        sum += amount;
      }
      legs.put(accounts.get(0), -sum);
      return legs;
    }

    String transfer(int number, String kind, Map<Integer, Integer> legs) {
      var p = producer;
      boolean asked = false;
      try {
        p.beginTransaction();
        legs.forEach(
            (account, amount) ->
                p.send(
                    new ProducerRecord<>(
                        "bank", account, null, name + ":" + number + ":" + account + ":" + amount)));
        if (kind.equals("commit")) {
          asked = true;
          again(p::commitTransaction);
          return "committed";
        }
        p.flush();
        if (kind.equals("zombie")) return asZombie(p);
        again(p::abortTransaction);
        return "aborted";
      } catch (Exception error) {
        return endBadly(p, history, error, asked);
      }
    }

    String asZombie(KafkaProducer<String, String> old) throws Exception {
      producer = opened(history, name, () -> stop);
      try {
        if (producer == null) return "dropped";
        again(old::commitTransaction);
        return "committed";
      } catch (KafkaException error) {
        return "fenced";
      } finally {
        old.close(Duration.ZERO);
      }
    }
  }

  static KafkaConsumer<String, String> member() {
    var d = new StringDeserializer();
    KafkaConsumer<String, String> c =
        new KafkaConsumer<>(
            ClusterLoad.properties(
                "group.id", "audit", "auto.offset.reset", "earliest", "enable.auto.commit", "false",
                "isolation.level", "read_committed", "session.timeout.ms", "10000", // see load.py
                "partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor"),
            d,
            d);
    c.subscribe(List.of("bank"));
    return c;
  }

  static void audit(String name) throws Exception {
    var history = new ClusterLoad.History(name, "auditor", "");
    KafkaProducer<String, String> producer = null;
    KafkaConsumer<String, String> consumer = null;
    BooleanSupplier over = () -> System.nanoTime() > auditUntil;
    while (!over.getAsBoolean()) {
      if (producer == null) {
        producer = opened(history, name, over);
        continue;
      }
      if (consumer == null) consumer = member();
      String outcome;
      int count = 0;
      try {
        var records = consumer.poll(Duration.ofMillis(300));
        count = records.count();
        if (count == 0) {
          if (ends != null && atTheEnds(consumer)) break;
          continue;
        }
        outcome = copy(producer, consumer, history, records);
      } catch (KafkaException error) {
        history.problem("poll", error);
        outcome = "aborted";
      }
      if (outcome.equals("committed")) {
        history.put("moved", "\"c\":" + count);
        continue;
      }
      // Where to go on is what the group's offsets say, whatever became of these.
      consumer.close();
      consumer = null;
      if (!outcome.equals("aborted")) {
        producer.close(Duration.ZERO);
        producer = null;
      }
    }
    if (consumer != null) consumer.close();
    history.put("close", "");
  }

  static boolean atTheEnds(KafkaConsumer<?, ?> c) {
    var mine = c.assignment();
    return !mine.isEmpty() && mine.stream().allMatch(tp -> c.position(tp) >= ends.get(tp));
  }

  static String copy(
      KafkaProducer<String, String> p,
      KafkaConsumer<String, String> c,
      ClusterLoad.History history,
      Iterable<ConsumerRecord<String, String>> records) {
    boolean asked = false;
    try {
      p.beginTransaction();
      Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
      for (var r : records) {
        String value = r.partition() + ":" + r.offset() + ":" + r.value();
        p.send(new ProducerRecord<>("ledger", r.partition() % BOOKS, null, value));
        next.put(new TopicPartition("bank", r.partition()), new OffsetAndMetadata(r.offset() + 1));
      }
      var of = c.groupMetadata();
      again(() -> p.sendOffsetsToTransaction(next, of));
      asked = true;
      again(p::commitTransaction);
      return "committed";
    } catch (Exception error) {
      return endBadly(p, history, error, asked);
    }
  }

  static Map<TopicPartition, Long> endsNow() {
    List<TopicPartition> all = new ArrayList<>();
    for (int a = 0; a < ACCOUNTS; a++) all.add(new TopicPartition("bank", a));
    var d = new StringDeserializer();
    try (var c = new KafkaConsumer<>(ClusterLoad.properties("isolation.level", "read_committed"), d, d)) {
      return c.endOffsets(all);
    }
  }

  public static void main(String[] args) throws Exception {
    ClusterLoad.bootstrap = args[0];
    ClusterLoad.folder = Path.of(args[1]);
    List<Thread> tellers = new ArrayList<>();
    for (String name : List.of("java-teller-1", "java-teller-2")) {
      Teller teller = new Teller(name);
      tellers.add(ClusterLoad.start(name, teller::work));
    }
    List<Thread> auditors = new ArrayList<>();
    for (String name : List.of("java-auditor-1", "java-auditor-2")) {
      auditors.add(ClusterLoad.start(name, () -> audit(name)));
    }
    ClusterLoad.say("ready");
    ClusterLoad.awaitLine();
    stop = true;
    for (Thread t : tellers) t.join(140_000);
    ClusterLoad.say("produced");
    ClusterLoad.awaitLine(); // until the others are done, too
    Thread.sleep(1000); // markers are written after their commit is answered
    auditUntil = System.nanoTime() + PATIENCE_NS;
    ends = endsNow();
    for (Thread t : auditors) t.join(120_000);
    ClusterLoad.say("done");
    Runtime.getRuntime().halt(0);
  }
}
