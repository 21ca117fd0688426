//! What is set on a connection's socket.

use tokio::net::TcpStream;

/// Sends small answers at once, and lets the kernel find out that a silent client's host is gone.
pub fn tune_connection(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    #[cfg(not(madsim))]
    rustix::net::sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}
