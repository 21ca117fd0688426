import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;

/**
 * The Java client's transactions: {@link Checks} runs them. An EndTxn is answered once the outcome is
 * decided, before all markers are written, so what a commit shows is waited for.
 */
class Transactions {
  static final String COMMITTED = "read_committed";
  static final String UNCOMMITTED = "read_uncommitted";

  static KafkaProducer<byte[], byte[]> producer(String id, String... pairs) {
    List<String> all = new ArrayList<>(List.of(pairs));
    all.addAll(List.of("transactional.id", id, "linger.ms", "0"));
    var p = Checks.producer(all.toArray(String[]::new));
    p.initTransactions();
    return p;
  }

  static void send(KafkaProducer<byte[], byte[]> p, String topic, int partition, String... values) throws Exception {
    List<java.util.concurrent.Future<?>> sent = new ArrayList<>();
    for (String v : values) sent.add(p.send(new ProducerRecord<>(topic, partition, null, Checks.bytes(v))));
    p.flush();
    for (var s : sent) s.get();
  }

  static void commit(KafkaProducer<byte[], byte[]> p, String topic, String... values) throws Exception {
    p.beginTransaction();
    send(p, topic, 0, values);
    p.commitTransaction();
  }

  static void abort(KafkaProducer<byte[], byte[]> p, String topic, String... values) throws Exception {
    p.beginTransaction();
    send(p, topic, 0, values);
    p.abortTransaction();
  }

  static List<TopicPartition> partitions(KafkaConsumer<?, ?> c, String topic) {
    return c.partitionsFor(topic).stream().map(i -> new TopicPartition(topic, i.partition())).toList();
  }

  /** What a reader sees of a topic from its start to its end, as far as the isolation level has one. */
  static List<String> seen(String topic, String isolation) throws Exception {
    try (var c = Checks.consumer("isolation.level", isolation)) {
      var all = partitions(c, topic);
      c.assign(all);
      c.seekToBeginning(all);
      Map<TopicPartition, Long> ends = c.endOffsets(all);
      List<String> got = new ArrayList<>();
      Checks.until(
          30,
          "the end of " + topic,
          () -> {
            boolean there = all.stream().allMatch(tp -> c.position(tp) >= ends.get(tp));
            if (!there) c.poll(Duration.ofMillis(100)).forEach(r -> got.add(new String(r.value())));
            return there;
          });
      return got;
    }
  }

  static void becomesVisible(String topic, String... values) throws Exception {
    List<String> last = new ArrayList<>();
    Checks.until(
        20,
        List.of(values) + " committed in " + topic,
        () -> {
          last.clear();
          last.addAll(seen(topic, COMMITTED));
          return last.size() >= values.length;
        });
    Checks.same(last, List.of(values), "committed values");
  }

  /** An error that tells a producer that another took its place. */
  static void fenced(Callable<?> call) throws Exception {
    try {
      call.call();
    } catch (KafkaException | java.util.concurrent.ExecutionException error) {
      for (Throwable e = error; e != null; e = e.getCause()) {
        if (e instanceof ProducerFencedException || e instanceof InvalidProducerEpochException) return;
      }
      throw new AssertionError("not fenced, but: " + error, error);
    }
    throw new AssertionError("succeeded, wanted to be fenced");
  }

  static TransactionDescription describe(String id) throws Exception {
    return Checks.admin.describeTransactions(List.of(id)).description(id).get();
  }

  static void state(String id, TransactionState wanted) throws Exception {
    Checks.until(15, id + " is " + wanted, () -> describe(id).state() == wanted);
  }

  static long end(String topic, IsolationLevel level) throws Exception {
    var tp = new TopicPartition(topic, 0);
    var how = new ListOffsetsOptions(level);
    return Checks.admin.listOffsets(Map.of(tp, OffsetSpec.latest()), how).partitionResult(tp).get().offset();
  }

  static List<ProducerState> producers(String topic) throws Exception {
    var tp = new TopicPartition(topic, 0);
    return new ArrayList<>(Checks.admin.describeProducers(List.of(tp)).partitionResult(tp).get().activeProducers());
  }

  static void outcomes() {
    Checks.checks.put(
        "txn_version_is_2",
        () -> {
          var found = Checks.admin.describeFeatures().featureMetadata().get().finalizedFeatures();
          var version = found.get("transaction.version");
          Checks.hold(version != null, "no transaction.version in " + found);
          Checks.same((int) version.maxVersionLevel(), 2, "transaction.version");
        });
    Checks.checks.put(
        "txn_commit",
        () -> {
          String topic = Checks.create("java-txn-commit", 1);
          try (var p = producer("java-txn-commit")) {
            p.beginTransaction();
            send(p, topic, 0, "a", "b");
            Checks.same(seen(topic, COMMITTED), List.of(), "committed before the commit");
            Checks.same(seen(topic, UNCOMMITTED), List.of("a", "b"), "uncommitted before the commit");
            p.commitTransaction();
            becomesVisible(topic, "a", "b");
            Checks.same(seen(topic, UNCOMMITTED), List.of("a", "b"), "uncommitted after the commit");
            for (int i = 0; i < 20; i++) commit(p, topic, "c" + i);
            Checks.until(20, "22 values", () -> seen(topic, COMMITTED).size() == 22);
            Checks.same(end(topic, IsolationLevel.READ_UNCOMMITTED), 43L, "22 records, 21 markers");
          }
        });
    Checks.checks.put(
        "txn_abort",
        () -> {
          String topic = Checks.create("java-txn-abort", 1);
          try (var p = producer("java-txn-abort")) {
            abort(p, topic, "no", "never");
            commit(p, topic, "yes");
            abort(p, topic, "not this");
            commit(p, topic, "and this");
            becomesVisible(topic, "yes", "and this");
            Checks.same(
                seen(topic, UNCOMMITTED), List.of("no", "never", "yes", "not this", "and this"), "uncommitted");
          }
        });
    Checks.checks.put(
        "txn_empty",
        () -> {
          String topic = Checks.create("java-txn-empty", 1);
          try (var p = producer("java-txn-empty")) {
            for (int i = 0; i < 3; i++) {
              p.beginTransaction();
              p.commitTransaction();
              p.beginTransaction();
              p.abortTransaction();
            }
            Checks.same(end(topic, IsolationLevel.READ_UNCOMMITTED), 0L, "end of the log");
            commit(p, topic, "x");
            becomesVisible(topic, "x");
          }
        });
    Checks.checks.put(
        "txn_many_topics_and_partitions",
        () -> {
          List<String> topics = List.of("java-txn-many-a", "java-txn-many-b", "java-txn-many-c");
          for (String t : topics) Checks.create(t, 4);
          try (var p = producer("java-txn-many", "compression.type", "lz4")) {
            for (String round : List.of("abort", "commit")) {
              p.beginTransaction();
              for (String t : topics) {
                for (int i = 0; i < 400; i++) {
                  p.send(new ProducerRecord<>(t, i % 4, null, Checks.bytes(round + " " + i)));
                }
              }
              if (round.equals("abort")) {
                p.flush();
                p.abortTransaction();
              } else {
                p.commitTransaction();
              }
            }
          }
          Set<String> wanted = new TreeSet<>(IntStream.range(0, 400).mapToObj(i -> "commit " + i).toList());
          for (String t : topics) {
            Checks.until(20, "400 values of " + t, () -> seen(t, COMMITTED).size() == 400);
            Checks.same(new TreeSet<>(seen(t, COMMITTED)), wanted, "values of " + t);
          }
        });
    Checks.checks.put(
        "txn_read_committed_keeps_order",
        () -> {
          String topic = Checks.create("java-txn-order", 1);
          List<String> wanted = new ArrayList<>();
          List<String> got = new ArrayList<>();
          try (var p = producer("java-txn-order");
              var plain = Checks.producer();
              var c = Checks.consumer("isolation.level", COMMITTED, "group.id", "java-txn-order")) {
            c.subscribe(List.of(topic));
            for (int i = 0; i < 30; i++) {
              String value = "value " + i;
              if (i % 3 == 0) abort(p, topic, value);
              else if (i % 3 == 1) commit(p, topic, value);
              else plain.send(new ProducerRecord<>(topic, Checks.bytes(value))).get();
              if (i % 3 != 0) wanted.add(value);
              c.poll(Duration.ofMillis(20)).forEach(r -> got.add(new String(r.value())));
            }
            Checks.until(
                30,
                "20 values",
                () -> {
                  c.poll(Duration.ofMillis(100)).forEach(r -> got.add(new String(r.value())));
                  return got.size() >= 20;
                });
          }
          Checks.same(got, wanted, "values in order");
        });
    Checks.checks.put(
        "case_43_read_committed_ends_at_the_lso",
        () -> {
          String topic = Checks.create("java-txn-lso", 1);
          try (var p = producer("java-txn-lso");
              var plain = Checks.producer()) {
            plain.send(new ProducerRecord<>(topic, Checks.bytes("first"))).get();
            p.beginTransaction();
            send(p, topic, 0, "open");
            plain.send(new ProducerRecord<>(topic, Checks.bytes("behind"))).get();
            Checks.same(end(topic, IsolationLevel.READ_COMMITTED), 1L, "latest, read_committed");
            Checks.same(end(topic, IsolationLevel.READ_UNCOMMITTED), 3L, "latest, read_uncommitted");
            Checks.same(seen(topic, COMMITTED), List.of("first"), "what read_committed may see");
            p.abortTransaction();
            becomesVisible(topic, "first", "behind");
            Checks.until(10, "the LSO moves on", () -> end(topic, IsolationLevel.READ_COMMITTED) == 4L);
          }
        });
    Checks.checks.put(
        "case_47_overlapping_aborts",
        () -> {
          String topic = Checks.create("java-txn-overlap", 1);
          try (var a = producer("java-txn-overlap-a");
              var b = producer("java-txn-overlap-b");
              var c = producer("java-txn-overlap-c")) {
            for (var p : List.of(a, b, c)) p.beginTransaction();
            send(a, topic, 0, "a1"); // begins first, ends last
            send(b, topic, 0, "b1");
            b.abortTransaction();
            send(c, topic, 0, "c1");
            send(a, topic, 0, "a2");
            commit(b, topic, "b2");
            c.abortTransaction();
            Checks.same(seen(topic, COMMITTED), List.of(), "while the first is open");
            a.abortTransaction();
            commit(c, topic, "c2");
            becomesVisible(topic, "b2", "c2");
            // from the middle: the transaction that aborted had begun before
            try (var reader = Checks.consumer("isolation.level", COMMITTED)) {
              var tp = new TopicPartition(topic, 0);
              reader.assign(List.of(tp));
              reader.seek(tp, 3);
              List<String> got = new ArrayList<>();
              Checks.until(
                  20,
                  "two values",
                  () -> {
                    reader.poll(Duration.ofMillis(100)).forEach(r -> got.add(new String(r.value())));
                    return got.size() >= 2;
                  });
              Checks.same(got, List.of("b2", "c2"), "from offset 3 on");
            }
          }
        });
  }

  static void lives() {
    Checks.checks.put(
        "txn_zombie_fenced",
        () -> {
          String topic = Checks.create("java-txn-zombie", 1);
          try (var old = producer("java-txn-zombie")) {
            old.beginTransaction();
            send(old, topic, 0, "of the zombie");
            try (var young = producer("java-txn-zombie")) {
              fenced(() -> old.send(new ProducerRecord<>(topic, 0, null, Checks.bytes("late"))).get());
              fenced(
                  () -> {
                    old.commitTransaction();
                    return null;
                  });
              commit(young, topic, "of the successor");
              becomesVisible(topic, "of the successor");
            }
          }
        });
    Checks.checks.put(
        "txn_zombie_fenced_at_commit",
        () -> {
          String topic = Checks.create("java-txn-zombie-commit", 1);
          try (var old = producer("java-txn-zombie-commit")) {
            old.beginTransaction();
            send(old, topic, 0, "of the zombie");
            try (var young = producer("java-txn-zombie-commit")) {
              fenced(
                  () -> {
                    old.commitTransaction();
                    return null;
                  });
              commit(young, topic, "of the successor");
            }
            becomesVisible(topic, "of the successor");
          }
        });
    Checks.checks.put(
        "case_50_timeout_aborts",
        () -> {
          String topic = Checks.create("java-txn-timeout", 1);
          try {
            producer("java-txn-timeout-long", "transaction.timeout.ms", "900001").close();
            throw new AssertionError("a timeout above transaction.max.timeout.ms was allowed");
          } catch (KafkaException error) {
            Checks.hold(error.getMessage().contains("larger than the maximum value allowed"), error);
          }
          try (var p = producer("java-txn-timeout", "transaction.timeout.ms", "1500");
              var plain = Checks.producer()) {
            p.beginTransaction();
            send(p, topic, 0, "too slow");
            int epoch = describe("java-txn-timeout").producerEpoch();
            plain.send(new ProducerRecord<>(topic, Checks.bytes("behind"))).get();
            Checks.until(40, "the transaction is given up", () -> seen(topic, COMMITTED).equals(List.of("behind")));
            state("java-txn-timeout", TransactionState.COMPLETE_ABORT);
            int now = describe("java-txn-timeout").producerEpoch();
            Checks.hold(now > epoch, "epoch " + epoch + ", after the timeout " + now);
            try {
              p.commitTransaction();
              throw new AssertionError("a transaction that timed out was committed");
            } catch (KafkaException expected) {
              // whether the client is fenced or may go on, is its matter: not committed is what counts
            }
          }
          try (var again = producer("java-txn-timeout")) {
            commit(again, topic, "anew");
            becomesVisible(topic, "behind", "anew");
          }
        });
    Checks.checks.put(
        "txn_admin_list_describe",
        () -> {
          String topic = Checks.create("java-txn-describe", 2);
          String id = "java-txn-describe";
          try (var p = producer(id, "transaction.timeout.ms", "54321")) {
            state(id, TransactionState.EMPTY);
            p.beginTransaction();
            send(p, topic, 1, "x");
            var found = describe(id);
            Checks.same(found.state(), TransactionState.ONGOING, "state");
            Checks.same(found.topicPartitions(), Set.of(new TopicPartition(topic, 1)), "partitions");
            Checks.same(found.transactionTimeoutMs(), 54321L, "timeout");
            Checks.hold(found.transactionStartTimeMs().isPresent(), "no start time");
            var ongoing = new ListTransactionsOptions().filterStates(List.of(TransactionState.ONGOING));
            Checks.hold(
                Checks.admin.listTransactions(ongoing).all().get().stream()
                    .anyMatch(l -> l.transactionalId().equals(id) && l.producerId() == found.producerId()),
                "not listed as ongoing");
            p.commitTransaction();
            state(id, TransactionState.COMPLETE_COMMIT);
            Checks.same(describe(id).topicPartitions(), Set.of(), "partitions after");
            var byProducer = new ListTransactionsOptions().filterProducerIds(List.of(found.producerId()));
            var listed = Checks.admin.listTransactions(byProducer).all().get();
            Checks.same(listed.size(), 1, "transactions of the producer");
            Checks.hold(
                Checks.admin.listTransactions(ongoing).all().get().stream()
                    .noneMatch(l -> l.transactionalId().equals(id)),
                "still listed as ongoing");
          }
          Checks.failsWith(
              org.apache.kafka.common.errors.TransactionalIdNotFoundException.class, () -> describe("java-txn-none"));
        });
    Checks.checks.put(
        "txn_admin_fence_producers",
        () -> {
          String topic = Checks.create("java-txn-fence", 1);
          try (var p = producer("java-txn-fence")) {
            p.beginTransaction();
            send(p, topic, 0, "x");
            Checks.admin.fenceProducers(List.of("java-txn-fence")).all().get();
            fenced(
                () -> {
                  p.commitTransaction();
                  return null;
                });
            Checks.until(20, "the LSO moves on", () -> end(topic, IsolationLevel.READ_COMMITTED) == 2L);
            Checks.same(seen(topic, COMMITTED), List.of(), "committed");
          }
        });
    Checks.checks.put(
        "txn_admin_abort",
        () -> {
          String topic = Checks.create("java-txn-admin-abort", 1);
          try (var p = producer("java-txn-admin-abort")) {
            commit(p, topic, "fine");
            becomesVisible(topic, "fine");
            p.beginTransaction();
            send(p, topic, 0, "stuck");
            ProducerState found = producers(topic).get(0);
            Checks.same(found.currentTransactionStartOffset().getAsLong(), 2L, "start of the transaction");
            var how =
                new AbortTransactionSpec(
                    new TopicPartition(topic, 0),
                    found.producerId(),
                    (short) found.producerEpoch(),
                    found.coordinatorEpoch().orElse(0));
            Checks.admin.abortTransaction(how).all().get();
            Checks.same(end(topic, IsolationLevel.READ_COMMITTED), 4L, "LSO");
            Checks.same(seen(topic, COMMITTED), List.of("fine"), "committed");
            Checks.hold(producers(topic).get(0).currentTransactionStartOffset().isEmpty(), "still open");
          }
        });
  }

  static void checks() {
    outcomes();
    lives();
    GroupTransactions.groups();
  }
}
