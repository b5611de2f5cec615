# frozen_string_literal: true

module Tracepoint
  module Agent
    # Values at the entry of a method: docs/agent/memory.md, "Values of expressions". The
    # hook evaluates them in the program's thread, in the middle of a call.
    module Expressions
      # Raised to end an expression that takes too long; the program never sees it.
      class Stop < Exception; end # rubocop:disable Lint/InheritException -- a StandardError would be rescued

      MOST = 16
      MOST_BYTES = 1024
      ROOM = 1000
      ELLIPSIS = "\u2026"
      LEFT = "(left by throw, break or return)"
      TICK = 0.02
      # Exceptions that others raise in the thread wait until the evaluation is over. Stop
      # and Thread#kill do not wait. A thread that an expression starts inherits this mask,
      # and must end with the program.
      NEVER = { Exception => :never }.freeze
      IMMEDIATE = { Stop => :immediate }.freeze
      METHODS = %i[raise stop?].map { |name| Thread.instance_method(name) }.freeze
      EQUAL = BasicObject.instance_method(:equal?)

      # The context of an evaluation.
      # place: location of the method's definition; for a C method, of its call
      # own: number of frames that the method has on the stack
      Frame = Struct.new(:binding, :receiver, :place, :own)

      # Replaces caller and caller_locations without arguments, so that they return what they
      # would in the first line of the method. Called from here, they would start with frames
      # of the agent. Local variables of the expression with these names hold the results.
      module Callers
        METHODS = { caller: Kernel.instance_method(:caller),
                    caller_locations: Kernel.instance_method(:caller_locations) }.freeze
        METHOD = Kernel.instance_method(:method)
        OURS = "#{FOLDER}/"

        class << self
          def named(text)
            METHODS.keys.select { |name| text.match?(/(?<![\w@$.:])#{name}(?![\w?!(])/) }
          end

          # Return the scope with these names added, except names that the program defines.
          def into(scope, names, frame)
            names = names.reject { |name| scope.local_variable_defined?(name) || own?(frame.receiver, name) }
            return scope if names.empty?

            scope = scope.dup
            names.each { |name| scope.local_variable_set(name, found(name, frame)) }
            scope
          end

          private

          def own?(receiver, name)
            !(Object === receiver) || METHOD.bind_call(receiver, name).owner != Kernel
          end

          def found(name, frame)
            METHODS[name].bind_call(self, 0).drop_while { |place| place.to_s.start_with?(OURS) }.drop(frame.own)
          end
        end
      end

      # An expression, and the cheapest way to its value.
      class Expression
        FILE = "(rbtrace)"
        SELF = 1
        BINDING = 2
        PLACE = 4
        IVAR_GET = Kernel.instance_method(:instance_variable_get)
        # Returns a binding of any object, with Ruby's top level as its scope.
        BINDER = TOPLEVEL_BINDING.eval("::Module.new { def rbtrace_binding; ::Kernel.binding; end }", __FILE__, __LINE__)
                                 .instance_method(:rbtrace_binding)
        KINDS = { /\Aself\z/ => :itself, /\A__source__\z/ => :place, /\A@[A-Za-z_]\w*\z/ => :variable,
                  /\Aself\.[a-z_]\w*[?!]?\z/ => :attribute, /\A[a-z_]\w*\z/ => :local }.freeze

        # @raise [Refusal] if it is not valid Ruby
        def initialize(text)
          @text = text.strip
          @kind = KINDS.find { |form, _| form.match?(@text) }&.last || :code
          @name = @text.delete_prefix("self.").to_sym if %i[variable attribute local].include?(@kind)
          @callers = Callers.named(@text)
          check unless @kind == :place
        end

        def wants
          case @kind
          when :place then SELF | PLACE
          when :local, :code then SELF | BINDING
          else SELF
          end
        end

        def value(frame)
          case @kind
          when :itself then frame.receiver
          when :place then frame.place
          when :variable then IVAR_GET.bind_call(frame.receiver, @name)
          when :attribute then frame.receiver.__send__(@name)
          else evaluated(frame)
          end
        end

        private

        def evaluated(frame)
          scope = frame.binding ||= BINDER.bind_call(frame.receiver)
          return scope.local_variable_get(@name) if @kind == :local && scope.local_variable_defined?(@name)

          Callers.into(scope, @callers, frame).eval(@text, FILE, 1)
        end

        # Compile without running anything, and without warnings to the program.
        def check
          verbose = $VERBOSE
          $VERBOSE = nil
          RubyVM::InstructionSequence.compile(@text, FILE, FILE, 1)
        rescue SyntaxError => e
          raise Refusal.new("argument", "the expression #{Values.text(@text).inspect} is not valid Ruby: #{reason(e)}")
        ensure
          $VERBOSE = verbose
        end

        def reason(error)
          lines = Values.text(error.message).lines.map { |line| line.sub(/\A\(rbtrace\):\d+: /, "").strip }
          (lines.find { |line| line.sub!(/\A\|\s*\^[\s^~]*/, "") } || lines.first.to_s).delete_prefix("syntax error, ")
        end
      end

      class << self
        # programs: the expressions of each selector, or nil
        def use(programs, limit_ms)
          @programs = programs
          @limit_ms = limit_ms
        end

        # Start a watcher, which ends after disarming with the last evaluation. Each arming
        # has its own.
        #
        # @raise [ThreadError] if no thread can be started
        def watch
          mine = @watcher = Object.new
          Watcher.new { |watcher| watcher.pause(TICK) while @watcher.equal?(mine) && Native.watch }
        end

        # Return the contents of the records as bytes.
        def of(program, binding, receiver, path, line)
          Thread.handle_interrupt(NEVER) do
            frame = Frame.new(binding, receiver, path && "#{path}:#{line}", binding ? 1 : 0)
            found = Thread.handle_interrupt(immediate) { texts(@programs[program], frame) }
            nil while Thread.pending_interrupt? && drops_timeout?
            packed(program, found)
          end
        end

        # Receive pending requests to end an evaluation, so that they do no harm.
        def flush
          Thread.handle_interrupt(NEVER) { Thread.handle_interrupt(IMMEDIATE) { nil } }
        end

        private

        # Since timeout 0.4, only the Timeout that has expired handles this exception, so it
        # may be raised immediately.
        def immediate
          defined?(::Timeout::ExitException) ? { Stop => :immediate, ::Timeout::ExitException => :immediate } : IMMEDIATE
        end

        # Before 0.4, an expired Timeout throws if its block is still active; the program's
        # Timeout is. Otherwise it raises, and the expression has already left that Timeout.
        def drops_timeout?
          return false if defined?(::Timeout::ExitException) || !defined?(::Timeout::Error)

          Thread.handle_interrupt(::Timeout::Error => :immediate) { false }
        rescue ::Timeout::Error => e
          raise unless e.instance_of?(::Timeout::Error) # subclasses may be the program's

          true
        end

        # Return exceptions that belong to the program even if raised during an expression.
        def foreign
          defined?(::Timeout::ExitException) ? [SignalException, ::Timeout::ExitException] : [SignalException]
        end

        def packed(program, texts)
          shortened(texts).inject([program, 0].pack("S<C")) { |bytes, text| bytes << [text.bytesize].pack("S<") << text.b }
        end

        def texts(expressions, frame)
          found = []
          expressions.each { |expression| found << text(expression, frame) }
          found
        rescue Stop
          found << "(took longer than #{@limit_ms} ms)" until found.size == expressions.size
          found
        end

        # A throw, return, or break would continue in the program, so it ends here. An
        # exception propagates, and is recognized even if it leaves too little stack to ask.
        def text(expression, frame)
          before = $!
          found = text_or_error(expression, frame)
        ensure
          is_killed = Thread.current.status == "aborting"
          return LEFT unless found || is_killed || !EQUAL.bind_call(before, $!) # rubocop:disable Lint/EnsureReturn
        end

        def text_or_error(expression, frame)
          printable(expression.value(frame).inspect)
        rescue Stop, *foreign # a signal's exception belongs to the program
          raise
        rescue Exception => e # rubocop:disable Lint/RescueException -- none of these is meant for the program
          failure(e)
        end

        def failure(error)
          name = Names.module_text(Names::OBJECT_CLASS.bind_call(error))
          "(#{name}: #{printable(error.message).lines.first.to_s.strip})"
        rescue Stop, *foreign
          raise
        rescue Exception # rubocop:disable Lint/RescueException -- raised by its message
          name ? "(#{name})" : raise # too little stack for even this
        end

        # Convert any result of inspect to a plain String.
        def printable(text)
          Values.text("#{text}".byteslice(0, 4 * ROOM))
        end

        # Shorten the longest values so that all fit together.
        def shortened(texts)
          left = ROOM
          share = texts.map(&:bytesize).sort.each_with_index do |size, i|
            fair = left / (texts.size - i)
            break fair if size > fair

            left -= size
          end
          share.is_a?(Integer) ? texts.map { |text| cut(text, share) } : texts
        end

        def cut(text, bytes)
          return text if text.bytesize <= bytes

          text.byteslice(0, bytes - ELLIPSIS.bytesize).scrub("") << ELLIPSIS
        end
      end

      Native.use(self, Stop, *METHODS) unless Native.reason
    end
  end
end
