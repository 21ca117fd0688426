//! Which topic names are legal.

use super::layout;
use super::AdminError;

/// Kafka's limit: the name is part of file names.
const MAX_LEN: usize = 249;
/// Names that are the cluster's own: what lies beside the topics on the volume, and Kafka's metadata log.
const RESERVED: [&str; 3] = [layout::ROOT, layout::MARKER, "__cluster_metadata"];

/// Kafka's rules for topic names (`org.apache.kafka.common.internals.Topic.validate`), and what this broker's
/// volume keeps for itself. That a name collides with an existing one is told by
/// [`super::Cluster::create_topic`].
///
/// # Errors
/// [`AdminError::InvalidTopic`] with the reason.
pub fn check_topic_name(name: &str) -> Result<(), AdminError> {
    let invalid = |why: String| Err(AdminError::InvalidTopic(why));
    if name.is_empty() {
        return invalid("the topic name is empty".into());
    }
    if name.len() > MAX_LEN {
        return invalid(format!("the topic name has {} bytes, {MAX_LEN} are allowed", name.len()));
    }
    if name == "." || name == ".." {
        return invalid(format!("the topic name cannot be {name:?}"));
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        return invalid(format!(
            "the topic name {name:?} has other characters than ASCII letters, digits, '.', '_' and '-'"
        ));
    }
    if RESERVED.contains(&name) || name.starts_with(layout::MARKER) {
        return invalid(format!("the topic name {name:?} is reserved"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kafkas_names_are_legal() {
        let longest = "x".repeat(249);
        for name in ["a", "A-1_b.c", "...", ".hidden", "__consumer_offsets", "_schemas", longest.as_str()] {
            assert!(check_topic_name(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn others_are_not() {
        let too_long = "x".repeat(250);
        let bad =
            ["", ".", "..", "a/b", "../x", "a b", "a\0", "ä", "a\n", "a:b", "__cluster", too_long.as_str()];
        for name in bad {
            assert!(matches!(check_topic_name(name), Err(AdminError::InvalidTopic(_))), "{name:?}");
        }
    }
}
