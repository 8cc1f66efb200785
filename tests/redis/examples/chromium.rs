//! A headless Chromium, driven over the DevTools protocol.

use std::{
    env,
    fs::File,
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

use support::sharing::shared;

/// Each page has separate processes, so allow two at a time.
static PAGES: Semaphore = Semaphore::const_new(2);

/// Far longer than any step here, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The browser of all tests that run now. It takes far longer to start than most tests.
struct Browser {
    child: Child,
    /// The address of the DevTools protocol.
    address: String,
    _profile: TempDir,
}

/// One page, which shares no cookies or other state with another page.
pub(crate) struct Page {
    _browser: Arc<Browser>,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    session: String,
    calls: u64,
    /// The errors of the page's script: exceptions, and errors on the console.
    errors: Vec<String>,
    _permit: SemaphorePermit<'static>,
}

impl Page {
    /// Opens an empty page. Without a browser, returns `None` and prints a message that no test runner hides.
    pub(crate) async fn open() -> Option<Self> {
        let Some(program) = program() else {
            skipped();
            return None;
        };
        let permit = PAGES.acquire().await.unwrap();
        let browser = Browser::shared(&program);
        let (socket, _) = connect_async(&browser.address).await.unwrap();
        let mut page = Self {
            _browser: browser,
            socket,
            session: String::new(),
            calls: 0,
            errors: Vec::new(),
            _permit: permit,
        };
        let alone = json!({ "disposeOnDetach": true });
        let context =
            page.call("Target.createBrowserContext", alone).await["browserContextId"].clone();
        let blank = json!({ "url": "about:blank", "browserContextId": context });
        let target = page.call("Target.createTarget", blank).await["targetId"].clone();
        let attach = json!({ "targetId": target, "flatten": true });
        let session = page.call("Target.attachToTarget", attach).await["sessionId"].clone();
        page.session = session.as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Accessibility"] {
            page.call(&format!("{domain}.enable"), json!({})).await;
        }
        Some(page)
    }

    /// Calls a method of the protocol.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut call = json!({ "id": self.calls, "method": method, "params": params });
        if !self.session.is_empty() {
            call["sessionId"] = self.session.clone().into();
        }
        let message = Message::text(call.to_string());
        self.socket.send(message).await.unwrap();
        loop {
            let next = timeout(PATIENCE, self.socket.next()).await;
            let message = next.unwrap_or_else(|_| panic!("no answer to {method}"));
            let Message::Text(text) = message.unwrap().unwrap() else {
                continue;
            };
            let mut answer: Value = serde_json::from_str(&text).unwrap();
            if answer["method"] == "Runtime.exceptionThrown" {
                self.errors.push(answer["params"].to_string());
            }
            if answer["id"] == self.calls {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }

    /// The value of a JavaScript expression, as JSON.
    pub(crate) async fn eval(&mut self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", params).await;
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].take()
    }

    /// Loads a server's page, as if you typed its address.
    pub(crate) async fn load(&mut self, server: SocketAddr) {
        let url = format!("http://{server}/");
        self.call("Page.navigate", json!({ "url": url })).await;
        self.until("document.readyState === 'complete' && location.protocol === 'http:'")
            .await;
    }

    /// Waits until the page meets a condition.
    pub(crate) async fn until(&mut self, condition: &str) {
        let poll = format!(
            "new Promise(done => {{
                const end = performance.now() + {}
                const look = () => ({condition}) ? done(true)
                    : performance.now() > end ? done(document.body.innerText) : setTimeout(look, 20)
                look()
            }})",
            PATIENCE.as_millis() / 2
        );
        let shown = self.eval(&poll).await;
        assert_eq!(shown, true, "never: {condition}");
    }

    /// Presses a key: the name, the written text, and the code.
    pub(crate) async fn press(&mut self, (key, text, code): (&str, &str, u32)) {
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Sets the size of the screen, in CSS pixels.
    pub(crate) async fn resize(&mut self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Sets the reader's preference, `light` or `dark`.
    pub(crate) async fn scheme(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let media = json!({ "features": features });
        self.call("Emulation.setEmulatedMedia", media).await;
    }

    /// The role and the name of each element that a screen reader finds.
    pub(crate) async fn accessible(&mut self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", json!({})).await;
        let nodes = tree["nodes"].as_array().unwrap().iter();
        let nodes = nodes.filter(|node| node["ignored"] == false).map(|node| {
            let text = |field: &str| node[field]["value"].as_str().unwrap_or_default().to_owned();
            (text("role"), text("name"))
        });
        nodes.collect()
    }

    /// The errors of the page's script.
    pub(crate) fn errors(&self) -> &[String] {
        &self.errors
    }

    /// Writes a PNG of the whole page into the folder in `SLUICEGATE_SCREENSHOTS`, if that is set.
    pub(crate) async fn screenshot(&mut self, name: &str) {
        let Some(folder) = env::var_os("SLUICEGATE_SCREENSHOTS") else {
            return;
        };
        let params = json!({ "captureBeyondViewport": true });
        let shot = self.call("Page.captureScreenshot", params).await;
        let file = File::create(PathBuf::from(folder).join(format!("{name}.png"))).unwrap();
        let mut decoder = Command::new("base64")
            .arg("-d")
            .stdin(Stdio::piped())
            .stdout(file)
            .spawn()
            .unwrap();
        let data = shot["data"].as_str().unwrap();
        let mut pipe = decoder.stdin.take().unwrap();
        pipe.write_all(data.as_bytes()).unwrap();
        drop(pipe);
        assert!(decoder.wait().unwrap().success());
    }
}

impl Browser {
    fn shared(program: &PathBuf) -> Arc<Self> {
        static RUNNING: Mutex<Weak<Browser>> = Mutex::new(Weak::new());
        shared(&RUNNING, || Self::start(program))
    }

    fn start(program: &PathBuf) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let (child, address) = spawn(program, &profile);
        Self {
            child,
            address,
            _profile: profile,
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program in `SLUICEGATE_CHROMIUM`, or the first installed one with a usual name.
fn program() -> Option<PathBuf> {
    if let Some(program) = env::var_os("SLUICEGATE_CHROMIUM") {
        return Some(program.into());
    }
    let names = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ];
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let mut programs = names
        .iter()
        .flat_map(|name| folders.iter().map(move |it| it.join(name)));
    programs.find(|it| it.is_file())
}

/// Written directly to stderr, because the runner hides the output of tests that pass.
fn skipped() {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let _ = writeln!(
        std::io::stderr(),
        "\nSKIPPED {test}: no browser. Install Chromium (apt-get install chromium), or name a program with SLUICEGATE_CHROMIUM."
    );
}

/// Starts the browser. Returns the address of the DevTools protocol.
fn spawn(program: &PathBuf, profile: &TempDir) -> (Child, String) {
    let mut child = Command::new(program)
        // Its sandbox needs rights that containers do not give, and these tests open only their own pages.
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args([
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
        ])
        .args([
            "--disable-crash-reporter",
            "--disable-extensions",
            "--hide-scrollbars",
        ])
        // Without this, only one page at a time has timers that keep their pace.
        .args([
            "--disable-background-timer-throttling",
            "--disable-backgrounding-occluded-windows",
            "--disable-renderer-backgrounding",
        ])
        .arg("--remote-debugging-port=0")
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg("about:blank")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut said = Vec::new();
    for line in lines.by_ref() {
        let Ok(line) = line else { break };
        if let Some(address) = line.strip_prefix("DevTools listening on ") {
            let address = address.to_owned();
            // A full pipe would stop the browser.
            std::thread::spawn(move || lines.for_each(drop));
            return (child, address);
        }
        said.push(line);
    }
    let _ = child.kill();
    let _ = child.wait();
    panic!("{} cannot be driven: {said:#?}", program.display());
}
