import java.util.List;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;

/**
 * The Java client's transactions on a broker that is killed where this program says: {@code Restarts ADDRESS}.
 *
 * <p>It prints {@code kill9}; whoever started it kills the broker, starts it again and answers with a line.
 */
@SuppressWarnings("removal") // see GroupTransactions
public class Restarts {
  static void again() throws Exception {
    System.out.println("kill9");
    System.out.flush();
    for (int c; (c = System.in.read()) != '\n'; ) Checks.hold(c >= 0, "nobody restarts the broker");
  }

  static void run(KafkaProducer<byte[], byte[]> p, String topic) throws Exception {
    Transactions.commit(p, topic, "before");
    again(); // between transactions
    p.beginTransaction();
    Transactions.send(p, topic, 0, "begun");
    again(); // in one that commits
    Transactions.send(p, topic, 0, "went on");
    p.commitTransaction();
    again(); // right after its commit
    Transactions.becomesVisible(topic, "before", "begun", "went on");
    p.beginTransaction();
    Transactions.send(p, topic, 0, "given up");
    again(); // in one that aborts
    p.abortTransaction();
    p.beginTransaction();
    Transactions.send(p, topic, 0, "with offsets");
    p.sendOffsetsToTransaction(GroupTransactions.at(topic, 5), new ConsumerGroupMetadata(topic));
    again(); // while offsets are pending
    Checks.same(GroupTransactions.offset(topic, topic), -1L, "the group's offset while pending");
    p.commitTransaction();
    Checks.until(10, "the offset follows", () -> GroupTransactions.offset(topic, topic) == 5L);
    p.beginTransaction();
    Transactions.send(p, topic, 0, "of the zombie");
    again(); // before a successor takes over what is open
    try (var young = Transactions.producer(topic)) {
      Transactions.fenced(
          () -> {
            p.commitTransaction();
            return null;
          });
      Transactions.commit(young, topic, "of the successor");
    }
    Transactions.becomesVisible(topic, "before", "begun", "went on", "with offsets", "of the successor");
    Checks.same(Transactions.seen(topic, Transactions.UNCOMMITTED).size(), 7, "records in the log");
  }

  public static void main(String[] args) throws Exception {
    Checks.address = args[0];
    long started = System.nanoTime();
    String problem = null;
    try (Admin admin = Admin.create(Checks.properties("default.api.timeout.ms", "30000"))) {
      Checks.admin = admin;
      String topic = Checks.create("java-restarts", 1);
      try (var p = Transactions.producer(topic)) {
        run(p, topic);
      }
    } catch (Throwable error) {
      problem = error + Checks.where(error);
    }
    Checks.report("txn_survives_kill9", started, problem);
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }
}
