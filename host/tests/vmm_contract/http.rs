//! An HTTP/1.1 server over a unix socket that misbehaves on demand: the outside of the peers that have an API.

use crate::suite::Mode;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn changes(&self) -> bool {
        self.method != "GET"
    }
}

/// Status and body.
pub(crate) type Reply = (u16, String);

/// What is behind the server.
pub(crate) trait Handler: Send + 'static {
    fn mode(&self) -> Mode;
    fn answer(&mut self, asked: &Asked) -> Reply;
}

/// Serves until the process ends or the socket's file is gone; each connection has a thread.
pub(crate) fn serve(path: &Path, handler: Arc<Mutex<impl Handler>>) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let handler = Arc::clone(&handler);
            // A client that went away in the middle is no fault of the server's.
            thread::spawn(move || drop(connection(stream.unwrap(), &handler)));
        }
    });
}

fn connection(stream: UnixStream, handler: &Mutex<impl Handler>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(asked) = read(&mut reader)? {
        let mode = handler.lock().unwrap().mode();
        let changes = asked.changes();
        let reply = match mode {
            Mode::Silent => return hang(&mut reader),
            Mode::Hang if changes => return hang(&mut reader),
            Mode::TakeAndHang if changes => {
                handler.lock().unwrap().answer(&asked);
                return hang(&mut reader);
            }
            Mode::Garbage => b"220 smtp.example ESMTP\r\n\r\n".to_vec(),
            Mode::Half => {
                let whole = written(&handler.lock().unwrap().answer(&asked));
                (&stream).write_all(&whole[..whole.len() - 3])?;
                return Ok(());
            }
            Mode::Endless => {
                (&stream).write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
                loop {
                    (&stream).write_all(b"8\r\n[[[[[[[[\r\n")?;
                }
            }
            _ => written(&handler.lock().unwrap().answer(&asked)),
        };
        // In two pieces, as from a busy peer.
        let (first, second) = reply.split_at(reply.len() / 2);
        (&stream).write_all(first)?;
        thread::yield_now();
        (&stream).write_all(second)?;
    }
    Ok(())
}

fn written((status, body): &Reply) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} \r\nServer: API\r\nConnection: keep-alive\r\n");
    if *status == 204 {
        return format!("{head}\r\n").into_bytes();
    }
    format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Until the client goes.
fn hang(reader: &mut impl Read) -> std::io::Result<()> {
    reader.read_to_end(&mut Vec::new()).map(drop)
}

fn read(reader: &mut impl BufRead) -> std::io::Result<Option<Asked>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(Asked { method, target, body: String::from_utf8(body).unwrap() }))
}
