//! Listener addresses, as `listeners` and `advertised.listeners` have them.

/// The address in `PLAINTEXT://host:port` or `host:port`. IPv6 hosts stand in brackets, and come back
/// without. The host may be empty.
pub(super) fn parse(text: &str) -> Result<(String, u16), String> {
    if text.contains(',') {
        return Err("one address only".to_owned());
    }
    let address = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("PLAINTEXT") => rest,
        Some((scheme, _)) => return Err(format!("{scheme} is not served, only PLAINTEXT")),
        None => text,
    };
    let (host, port) = address.rsplit_once(':').ok_or("neither host:port nor PLAINTEXT://host:port")?;
    let port: u16 = port.parse().map_err(|_| format!("{port:?} is not a port (0 to 65535)"))?;
    let host = match host.strip_prefix('[') {
        Some(v6) => v6.strip_suffix(']').ok_or("an IPv6 address lacks its closing bracket")?,
        None if host.contains(':') => return Err("an IPv6 address must stand in brackets".to_owned()),
        None => host,
    };
    if host.chars().any(|c| c.is_whitespace() || c == '/' || c == '@') {
        return Err(format!("{host:?} is not a host name"));
    }
    Ok((host.to_owned(), port))
}

/// Whether the host stands for every interface of the machine.
pub(super) fn is_wildcard(host: &str) -> bool {
    matches!(host, "" | "0.0.0.0" | "::")
}

/// `host:port`, in a form that can be bound.
pub(super) fn join(host: &str, port: u16) -> String {
    match host {
        "" => format!("0.0.0.0:{port}"),
        h if h.contains(':') => format!("[{h}]:{port}"),
        h => format!("{h}:{port}"),
    }
}
