// Keys go to the cockpit without a click first, as soon as there is somebody to take them.
const connected = new MutationObserver(() => {
  if (document.body.classList.contains("-loaded")) {
    document.querySelector(".xterm-helper-textarea").focus();
    connected.disconnect();
  }
});
connected.observe(document.body, { attributeFilter: ["class"] });
