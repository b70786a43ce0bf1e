"use strict";
const wait = document.querySelector("[data-live] input");
setInterval(() => { if (wait && wait.checked) location.reload(); }, 5000);
