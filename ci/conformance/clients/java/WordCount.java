import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams counts words, exactly once, while brokers are killed: {@code WordCount BOOTSTRAP STATE_DIR}.
 *
 * <p>A producer writes lines all the while. Streams splits them, sends the words through a topic of its own, counts them in
 * a store with a changelog, and writes every new count. So for each word the counts 1, 2, 3, … must be in the output,
 * each once and in this order, up to how often the word was acknowledged. {@code acked N} on standard
 * output is how many counts a reader of what is committed has seen; {@code stop} on standard input ends it.
 */
public class WordCount {
  static final String LINES = "wordcount-lines";
  static final String COUNTS = "wordcount-counts";
  static final int PARTITIONS = 4;
  static final int WORDS = 40;

  static final Map<String, Long> written = new ConcurrentHashMap<>();
  static final Map<String, List<Long>> counted = new TreeMap<>();
  static final AtomicLong seen = new AtomicLong();
  static final AtomicInteger replaced = new AtomicInteger();
  static final ConcurrentLinkedQueue<String> failed = new ConcurrentLinkedQueue<>();
  static volatile boolean producing = true;

  static KafkaStreams streams(String stateDir) {
    Properties p =
        Checks.properties(
            "application.id", "wordcount",
            "processing.guarantee", "exactly_once_v2",
            "state.dir", stateDir,
            "num.stream.threads", "2",
            "statestore.cache.max.bytes", "0", // every count goes out, not the last of a while
            "default.key.serde", Serdes.StringSerde.class.getName(),
            "default.value.serde", Serdes.StringSerde.class.getName(),
            "auto.offset.reset", "earliest");
    StreamsBuilder builder = new StreamsBuilder();
    builder.<String, String>stream(LINES)
        .flatMapValues(line -> Arrays.asList(line.split(" ")))
        .groupBy((key, word) -> word)
        .count()
        .toStream()
        .to(COUNTS, Produced.with(Serdes.String(), Serdes.Long()));
    KafkaStreams streams = new KafkaStreams(builder.build(), p);
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          replaced.incrementAndGet();
          return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
    return streams;
  }

  static void produce() {
    var s = new StringSerializer();
    Random random = new Random(7);
    try (var producer = new KafkaProducer<>(Checks.properties("linger.ms", "5"), s, s)) {
      while (producing) {
        String[] words = random.ints(5, 0, WORDS).mapToObj(i -> "word" + i).toArray(String[]::new);
        producer.send(
            new ProducerRecord<>(LINES, random.nextInt(PARTITIONS), null, String.join(" ", words)),
            (where, error) -> {
              if (error != null) failed.add(error.toString());
              else for (String w : words) written.merge(w, 1L, Long::sum);
            });
        Thread.sleep(10);
      }
      producer.flush();
    } catch (Exception error) {
      failed.add(error.toString());
    }
  }

  /** Reads the committed counts to their end, which comes when each word's count is what was written, or never. */
  static void read(long seconds) throws Exception {
    Properties p = Checks.properties("isolation.level", "read_committed", "auto.offset.reset", "earliest");
    try (var c = new KafkaConsumer<>(p, new StringDeserializer(), new LongDeserializer())) {
      List<TopicPartition> all = new ArrayList<>();
      for (int i = 0; i < PARTITIONS; i++) all.add(new TopicPartition(COUNTS, i));
      c.assign(all);
      c.seekToBeginning(all);
      long spoken = 0;
      long end = Long.MAX_VALUE;
      int extra = 10;
      while (System.nanoTime() < end && extra > 0) {
        for (var r : c.poll(Duration.ofMillis(200))) {
          counted.computeIfAbsent(r.key(), k -> new ArrayList<>()).add(r.value());
          seen.incrementAndGet();
        }
        if (System.nanoTime() - spoken > 500_000_000L) {
          spoken = System.nanoTime();
          System.out.println("acked " + seen);
        }
        if (producing) continue;
        if (end == Long.MAX_VALUE) end = System.nanoTime() + seconds * 1_000_000_000L;
        if (seen.get() >= written.values().stream().mapToLong(n -> n).sum()) extra--; // no more may come
      }
    }
  }

  static String wrong() {
    if (!failed.isEmpty()) return failed.size() + " lines were not written: " + failed.peek();
    if (written.isEmpty()) return "nothing was written";
    for (var e : written.entrySet()) {
      List<Long> found = counted.getOrDefault(e.getKey(), List.of());
      long last = found.isEmpty() ? 0 : found.get(found.size() - 1);
      if (last != e.getValue()) return e.getKey() + " was written " + e.getValue() + " times, counted " + last;
    }
    return counted.size() == written.size() ? null : "words were counted that nobody wrote";
  }

  static String torn() {
    for (var e : counted.entrySet()) {
      for (int i = 0; i < e.getValue().size(); i++) {
        if (e.getValue().get(i) != i + 1) {
          int from = Math.max(0, i - 3);
          var around = e.getValue().subList(from, Math.min(e.getValue().size(), i + 4));
          return e.getKey() + ": where " + (i + 1) + " should stand: " + around;
        }
      }
    }
    return null;
  }

  public static void main(String[] args) throws Exception {
    Checks.address = args[0];
    try (Admin admin = Admin.create(Checks.properties())) {
      Checks.admin = admin;
      Checks.create(LINES, PARTITIONS);
      Checks.create(COUNTS, PARTITIONS);
    }
    KafkaStreams streams = streams(args[1]);
    streams.start();
    Thread producer = new Thread(WordCount::produce);
    producer.setDaemon(true);
    producer.start();
    Thread reader =
        new Thread(
            () -> {
              try {
                read(100);
              } catch (Exception error) {
                failed.add("reading the counts: " + error);
              }
            });
    reader.setDaemon(true);
    reader.start();
    while (System.in.read() != '\n') {}
    long started = System.nanoTime();
    producing = false;
    producer.join(130_000);
    reader.join(130_000);
    Checks.report("streams_words_are_counted_right", started, wrong());
    Checks.report("streams_each_count_comes_once_in_order", started, torn());
    boolean closed = streams.close(Duration.ofSeconds(30));
    Checks.report("streams_end_in_order", started, closed ? null : "Streams did not close within 30 s");
    System.err.println(seen + " counts; " + replaced + " threads replaced");
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }
}
