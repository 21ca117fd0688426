//! Tells systemd when the broker serves and when it stops (sd_notify(3)), if systemd asked.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends one state, such as `READY=1`. Nothing depends on its arrival.
pub fn systemd(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(e) = send(path.as_encoded_bytes(), state) {
        tracing::warn!("cannot tell systemd {state}: {e}");
    }
}

fn send(path: &[u8], state: &str) -> std::io::Result<()> {
    let to = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::path::Path::new(
            std::str::from_utf8(path).map_err(std::io::Error::other)?,
        ))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &to).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_arrives_at_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str().as_encoded_bytes(), "READY=1").unwrap();
        let mut got = [0; 16];
        let n = systemd.recv(&mut got).unwrap();
        assert_eq!(&got[..n], b"READY=1");
        assert!(send(b"/no/such/socket", "READY=1").is_err());
    }
}
